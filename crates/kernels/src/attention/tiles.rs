//! Attention's bfloat16 products in tile registers. Vectors do everything else.
//!
//! Keys and values keep the word order in which they are appended, so that a tile's rows are every second cache
//! line.

use half::bf16;

use super::{
    AttentionKernel, DivideTotals, Exponentiate, Fill, Layout, NearTile, OperandDots, PackQueries,
    Score,
};
use crate::products::{
    Kernel,
    tiles::{TileKernel, TileLevel},
};

impl<T: TileLevel<Dots: OperandDots<bf16>>> AttentionKernel<bf16> for TileKernel<T> {
    fn rows(&self) -> usize {
        Kernel::<bf16>::rows(self)
    }

    fn layout(&self, head_dim: usize) -> Layout {
        self.0.dots().layout(head_dim)
    }

    fn row_words(&self) -> usize {
        self.0.dots().row_words()
    }

    fn left_words(&self) -> usize {
        self.0.dots().left_words()
    }

    fn fill(&self, task: Fill<bf16>) {
        self.0.dots().fill(task);
    }

    fn pack_queries(&self, task: PackQueries<bf16>) {
        self.0.dots().pack_queries(task);
    }

    fn multiply(&self, tile: NearTile<bf16>) {
        self.multiply_words(tile.dot_tile(Kernel::<bf16>::panel(self)));
    }

    fn score(&self, task: Score) {
        self.0.dots().score(task);
    }

    fn exponentiate(&self, task: Exponentiate<bf16>) {
        self.0.dots().exponentiate(task);
    }

    fn divide(&self, task: DivideTotals) {
        self.0.dots().divide(task);
    }

    fn with_tiles(&self, rows: usize, work: &mut dyn FnMut()) {
        Kernel::<bf16>::with_tiles(self, rows, work);
    }
}
