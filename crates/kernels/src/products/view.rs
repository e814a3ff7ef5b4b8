//! A matrix view with arbitrary strides.

use std::ops::Range;

/// A `rows × columns` matrix in a slice, with a row stride and a column stride. Every element lies within the slice:
/// [`View::new`] checks this once, and the accessors rely on it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T: Copy> View<'a, T> {
    /// Creates a view in which element (i, j) is `data[i * row_stride + j * column_stride]`.
    ///
    /// # Panics
    /// If an element lies outside the data.
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
                "a matrix view exceeds its data"
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

    /// Creates a view with contiguous rows.
    pub fn row_major(data: &'a [T], rows: usize, columns: usize) -> Self {
        Self::new(data, (rows, columns), (columns, 1))
    }

    /// Returns the transposed view.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Returns the row count.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the column count.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the distance between rows, in elements.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Returns whether each row's elements are contiguous.
    pub fn has_whole_rows(&self) -> bool {
        self.column_stride == 1 || self.columns <= 1
    }

    /// Returns element (i, j).
    pub fn at(&self, row: usize, column: usize) -> T {
        self.from(row, column)[0]
    }

    /// Returns the data from element (i, j) to the slice's end.
    pub fn from(&self, row: usize, column: usize) -> &'a [T] {
        assert!(row < self.rows && column < self.columns);
        &self.data[row * self.row_stride + column * self.column_stride..]
    }

    /// Returns the given columns in a row.
    ///
    /// # Panics
    /// If a row's elements are not contiguous (see [`Self::has_whole_rows`]).
    pub fn row(&self, row: usize, columns: Range<usize>) -> &'a [T] {
        assert!(self.has_whole_rows() && columns.end <= self.columns);
        if columns.is_empty() {
            return &[];
        }
        &self.from(row, columns.start)[..columns.len()]
    }
}
