//! Products of attention, whose right operands are in the cache.

use super::Operand;
use crate::products::{Ahead, DotTile, Dots, Format, Total};
use crate::vectors::Task;

/// A [`DotTile`] of keys or values, which are in the cache already. That nothing is prefetched is known at
/// compile time here; otherwise the innermost loop would decide it, at a cost of 1 % at the AVX2 level.
pub(crate) struct NearTile<'a, F: Format> {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) a: &'a [F::Word],
    pub(crate) b: &'a [F::Word],
    pub(crate) totals: &'a mut [f32],
    pub(crate) total: Total,
}

impl<F: Operand, D: Dots<F>> Task<D> for NearTile<'_, F> {
    #[inline(always)]
    fn compute(self, dots: D) {
        self.dot_tile().compute(dots);
    }
}

impl<'a, F: Format<Number = f32>> NearTile<'a, F> {
    /// The tile, which prefetches nothing.
    #[inline(always)]
    pub(crate) fn dot_tile(self) -> DotTile<'a, F> {
        DotTile {
            rows: self.rows,
            depth: self.depth,
            a: self.a,
            b: self.b,
            layout: F::Layout::default(),
            ahead: Ahead::Nothing,
            totals: self.totals,
            total: self.total,
        }
    }
}
