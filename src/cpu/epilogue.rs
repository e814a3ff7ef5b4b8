//! What becomes of a product's sums while they are still in the cache.

use std::ops::Range;

use super::Real;

/// Applied once to each finished sum, on its way to the result. The sums do not depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a, T> {
    /// Added last, one number for each column.
    pub bias: Option<&'a [T]>,
}

impl<T: Real> Epilogue<'_, T> {
    /// The sums as they are.
    pub const NONE: Self = Self { bias: None };

    /// Writes the results of one row's sums for these columns.
    #[inline(always)]
    pub fn finish(&self, sums: &[T], columns: Range<usize>, y: &mut [T]) {
        let sums = &sums[..y.len()];
        match self.bias {
            None => y.copy_from_slice(sums),
            Some(bias) => {
                for ((y, &sum), &bias) in y.iter_mut().zip(sums).zip(&bias[columns]) {
                    *y = sum + bias;
                }
            }
        }
    }
}
