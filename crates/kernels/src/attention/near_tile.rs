//! Products whose right operands are in the cache.

use super::Operand;
use crate::products::{Ahead, DotTiles, Dots, Format, PanelChunk, Total, Totals};
use crate::vectors::Task;

/// A [`DotTiles`] for keys or values, which are in the cache already. The type disables prefetching at compile time.
/// A branch in the innermost loop would cost 1 % on AVX2.
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
        self.dot_tile(D::PANEL).compute(dots);
    }
}

impl<'a, F: Format<Element = f32>> NearTile<'a, F> {
    /// Converts to a tile that prefetches nothing.
    #[inline(always)]
    pub(crate) fn dot_tile(self, panel: usize) -> DotTiles<'a, F> {
        DotTiles {
            rows: self.rows,
            depth: self.depth,
            a: self.a,
            b: PanelChunk::packed(&[], self.b),
            layout: F::Layout::default(),
            ahead: Ahead::NOTHING,
            totals: Totals::contiguous(self.totals, panel),
            total: self.total,
        }
    }
}
