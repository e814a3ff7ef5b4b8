//! A matrix read in place, whatever its strides.

use std::ops::Range;

/// `rows × columns` elements of a slice, with a stride for either index. Every element lies within the slice:
/// [`View::new`] is the only check, on which the accessors rely.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T: Copy> View<'a, T> {
    /// Element (i, j) is `data[i * row_stride + j * column_stride]`.
    ///
    /// # Panics
    /// If an element lies outside of the data.
    pub fn new(
        data: &'a [T],
        (rows, columns): (usize, usize),
        (row_stride, column_stride): (usize, usize),
    ) -> Self {
        if rows > 0 && columns > 0 {
            let last_row = (rows - 1).checked_mul(row_stride);
            let last_column = (columns - 1).checked_mul(column_stride);
            let last = last_row.and_then(|row| row.checked_add(last_column?));
            assert!(
                last.is_some_and(|last| last < data.len()),
                "a view beyond its data"
            );
        }
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride,
        }
    }

    /// Rows one after the other without gaps.
    pub fn row_major(data: &'a [T], rows: usize, columns: usize) -> Self {
        Self::new(data, (rows, columns), (columns, 1))
    }

    /// The same elements with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
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

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Whether the elements of each row are contiguous.
    pub fn has_whole_rows(&self) -> bool {
        self.column_stride == 1 || self.columns <= 1
    }

    /// Element (i, j).
    pub fn at(&self, row: usize, column: usize) -> T {
        self.from(row, column)[0]
    }

    /// The data from element (i, j) on, to the end of the slice.
    pub fn from(&self, row: usize, column: usize) -> &'a [T] {
        assert!(row < self.rows && column < self.columns);
        &self.data[row * self.row_stride + column * self.column_stride..]
    }

    /// The given columns of a row.
    ///
    /// # Panics
    /// If the elements of rows are not contiguous ([`Self::has_whole_rows`]).
    pub fn row(&self, row: usize, columns: Range<usize>) -> &'a [T] {
        assert!(self.has_whole_rows() && columns.end <= self.columns);
        if columns.is_empty() {
            return &[];
        }
        &self.from(row, columns.start)[..columns.len()]
    }
}
