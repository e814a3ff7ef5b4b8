//! Where rows of a product come from and go to: as they lie in memory, or in the order of the micro-kernel.

use std::ops::Range;

use super::{parallel::Shared, tile::CHUNK};

/// The left operand of a product, packed: chunks of [`CHUNK`] columns, in each the rows one after the other. The
/// last chunk is as wide; what lies behind the columns in it is not read.
#[derive(Clone, Copy)]
pub struct PackedRows<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
}

impl<'a, T> PackedRows<'a, T> {
    /// Numbers that so many packed rows take. Rows of nothing have one chunk too, of no terms.
    pub fn len(rows: usize, columns: usize) -> usize {
        rows * columns.div_ceil(CHUNK).max(1) * CHUNK
    }

    /// Of what was written through [`Target::packed`].
    pub fn new(data: &'a [T], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), Self::len(rows, columns));
        Self {
            data,
            rows,
            columns,
        }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// A chunk of columns from a row on, the rows [`CHUNK`] apart.
    #[inline(always)]
    pub fn chunk(&self, chunk: usize, first_row: usize) -> &'a [T] {
        &self.data[(chunk * self.rows + first_row) * CHUNK..]
    }
}

/// Rows that several threads write to at once, each where no other does.
pub struct Target<'a, T> {
    data: Shared<'a, T>,
    rows: usize,
    columns: usize,
    order: Order,
}

#[derive(Clone, Copy)]
enum Order {
    /// Row after row without gaps.
    RowMajor,
    /// That of [`PackedRows`].
    Packed,
}

impl<'a, T> Target<'a, T> {
    /// Rows of `columns` numbers without gaps.
    pub fn row_major(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(columns));
        Self {
            data: Shared::new(data),
            rows,
            columns,
            order: Order::RowMajor,
        }
    }

    /// Rows that become a [`PackedRows`].
    pub fn packed(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), PackedRows::<T>::len(rows, columns));
        Self {
            data: Shared::new(data),
            rows,
            columns,
            order: Order::Packed,
        }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Some columns of a row; of packed rows, within one chunk.
    ///
    /// # Safety
    /// No other piece that has elements in common with this one is in use.
    #[allow(clippy::mut_from_ref)] // as `Shared::range`
    #[inline(always)]
    pub unsafe fn piece(&self, row: usize, columns: Range<usize>) -> &mut [T] {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.columns);
        let start = match self.order {
            Order::RowMajor => row * self.columns + columns.start,
            Order::Packed => {
                let (chunk, within) = (columns.start / CHUNK, columns.start % CHUNK);
                assert!(within + columns.len() <= CHUNK);
                (chunk * self.rows + row) * CHUNK + within
            }
        };
        // SAFETY: the caller's promise; ranges of different rows or columns do not overlap in either order.
        unsafe { self.data.range(start..start + columns.len()) }
    }
}
