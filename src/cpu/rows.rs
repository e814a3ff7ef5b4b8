//! Where rows of a product come from and go to: as they lie in memory, or in the order of the micro-kernel.

use std::ops::Range;

use super::parallel::Shared;

/// How a packed row is cut.
#[derive(Clone, Copy, Debug)]
pub struct Chunks {
    /// Columns of a chunk.
    pub columns: usize,
    /// Words of a row in a chunk.
    pub words: usize,
}

/// The left operand of a product, packed: chunks of columns, in each the rows one after the other.
#[derive(Clone, Copy)]
pub struct PackedRows<'a, W> {
    data: &'a [W],
    rows: usize,
    columns: usize,
    chunks: Chunks,
}

impl<'a, W> PackedRows<'a, W> {
    /// Words that so many packed rows take. Rows of nothing have one chunk too, of no terms.
    pub fn words(rows: usize, columns: usize, chunks: Chunks) -> usize {
        rows * columns.div_ceil(chunks.columns).max(1) * chunks.words
    }

    /// Of rows that were packed, as through a [`PackedTarget`].
    pub fn new(data: &'a [W], rows: usize, columns: usize, chunks: Chunks) -> Self {
        assert_eq!(data.len(), Self::words(rows, columns, chunks));
        Self {
            data,
            rows,
            columns,
            chunks,
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

    /// All words.
    pub fn all(&self) -> &'a [W] {
        self.data
    }

    /// Words of a chunk of columns.
    pub fn chunk_words(&self) -> usize {
        self.rows * self.chunks.words
    }

    /// A chunk of columns from a row on.
    #[inline(always)]
    pub fn chunk(&self, chunk: usize, first_row: usize) -> &'a [W] {
        &self.data[(chunk * self.rows + first_row) * self.chunks.words..]
    }
}

/// A left operand that several threads write to at once, each where no other does.
pub struct PackedTarget<'a, W> {
    data: Shared<'a, W>,
    rows: usize,
    columns: usize,
    chunks: Chunks,
}

impl<'a, W> PackedTarget<'a, W> {
    /// Of words that become a [`PackedRows`].
    pub fn new(data: &'a mut [W], rows: usize, columns: usize, chunks: Chunks) -> Self {
        assert_eq!(data.len(), PackedRows::<W>::words(rows, columns, chunks));
        Self {
            data: Shared::new(data),
            rows,
            columns,
            chunks,
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

    /// The words of some rows in a chunk of columns.
    ///
    /// # Safety
    /// No words of these rows in this chunk are in use otherwise.
    #[allow(clippy::mut_from_ref)] // as `Shared::range`
    pub unsafe fn chunk(&self, chunk: usize, rows: Range<usize>) -> &mut [W] {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        let word = |row: usize| (chunk * self.rows + row) * self.chunks.words;
        // SAFETY: the caller's promise; words of different rows or chunks are apart.
        unsafe { self.data.range(word(rows.start)..word(rows.end)) }
    }
}

/// Rows that several threads write to at once, each where no other does.
pub struct Target<'a, T> {
    data: Shared<'a, T>,
    rows: usize,
    columns: usize,
}

impl<'a, T> Target<'a, T> {
    /// Rows of `columns` numbers without gaps.
    pub fn row_major(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(columns));
        Self {
            data: Shared::new(data),
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

    /// Where a row's column lies, to be fetched and not read.
    #[inline(always)]
    pub fn address(&self, row: usize, column: usize) -> *const T {
        self.data.address(row * self.columns + column)
    }

    /// Some columns of a row.
    ///
    /// # Safety
    /// No other piece that has elements in common with this one is in use.
    #[allow(clippy::mut_from_ref)] // as `Shared::range`
    #[inline(always)]
    pub unsafe fn piece(&self, row: usize, columns: Range<usize>) -> &mut [T] {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.columns);
        let start = row * self.columns + columns.start;
        // SAFETY: the caller's promise; pieces of different rows or columns do not overlap.
        unsafe { self.data.range(start..start + columns.len()) }
    }
}
