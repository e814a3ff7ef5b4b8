//! Rows that several threads write concurrently.

use std::ops::Range;

use super::Shared;

/// A row-major matrix that several threads write concurrently, each its own pieces.
pub struct Target<'a, T> {
    data: Shared<'a, T>,
    rows: usize,
    columns: usize,
}

impl<'a, T> Target<'a, T> {
    /// Shares contiguous rows with `columns` elements each.
    pub fn row_major(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(columns));
        Self {
            data: Shared::new(data),
            rows,
            columns,
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

    /// Returns an element's address, for prefetching or for rows with gaps. It may lie outside the rows.
    #[inline(always)]
    pub fn address(&self, row: usize, column: usize) -> *mut T {
        self.data.address(row * self.columns + column)
    }

    /// Returns some columns in a row.
    ///
    /// # Safety
    /// No other borrow of these elements is in use.
    #[allow(clippy::mut_from_ref)] // as `Shared::range`
    #[inline(always)]
    pub unsafe fn piece(&self, row: usize, columns: Range<usize>) -> &mut [T] {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.columns);
        let start = row * self.columns + columns.start;
        // SAFETY: the caller's promise; the assertion keeps the piece within its row.
        unsafe { self.data.range(start..start + columns.len()) }
    }
}
