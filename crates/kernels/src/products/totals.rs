//! A tile's totals: rows in working memory, or in the product's result.

use std::{marker::PhantomData, ops::Range, slice};

use crate::threads::Target;

/// Rows of totals with equal distances, which one thread writes.
pub struct Totals<'a, T> {
    first: *mut T,
    rows: usize,
    /// Totals in a row.
    width: usize,
    /// The distance between rows, at least `width`.
    stride: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<'a, T> Totals<'a, T> {
    /// Takes contiguous rows.
    pub fn contiguous(all: &'a mut [T], width: usize) -> Self {
        Self {
            first: all.as_mut_ptr(),
            rows: all.len() / width,
            width,
            stride: width,
            lifetime: PhantomData,
        }
    }

    /// Takes some columns in some rows of a product's result.
    ///
    /// # Safety
    /// No other borrow of these elements is in use.
    pub unsafe fn in_target(
        target: &'a Target<T>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Self {
        assert!(rows.start <= rows.end && rows.end <= target.rows());
        assert!(columns.start <= columns.end && columns.end <= target.columns());
        Self {
            first: target.address(rows.start, columns.start),
            rows: rows.len(),
            width: columns.len(),
            stride: target.columns(),
            lifetime: PhantomData,
        }
    }

    /// Returns some of the rows.
    pub fn part(&mut self, rows: Range<usize>) -> Totals<'_, T> {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        Totals {
            first: self.first.wrapping_add(rows.start * self.stride),
            rows: rows.len(),
            lifetime: PhantomData,
            ..*self
        }
    }

    /// Returns whether there are at least `rows` rows, with `width` totals each.
    #[inline(always)]
    pub fn holds(&self, rows: usize, width: usize) -> bool {
        self.rows >= rows && self.width == width
    }

    /// Returns a row.
    #[inline(always)]
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows);
        // SAFETY: one of the rows that the constructors took, which nobody else borrows.
        unsafe { slice::from_raw_parts_mut(self.first.add(row * self.stride), self.width) }
    }

    /// Returns all rows.
    ///
    /// # Panics
    /// If they are not contiguous.
    #[cfg(target_arch = "x86_64")] // for tile registers
    pub fn into_slice(self) -> &'a mut [T] {
        assert_eq!(self.stride, self.width, "the totals are not contiguous");
        // SAFETY: as above, and the rows are contiguous.
        unsafe { slice::from_raw_parts_mut(self.first, self.rows * self.width) }
    }
}
