//! What attention asks of a level's instructions: a table of functions for each format of operands, as
//! [`products::kernel`](crate::products::kernel) for products.

use half::bf16;

use super::{
    chunk::Layout,
    divide::DivideTotals,
    exponentiate::Exponentiate,
    fill::Fill,
    near_tile::NearTile,
    operand::{Operand, OperandDots},
    pack_queries::PackQueries,
    score::Score,
};
use crate::{
    products::kernel::choose,
    vectors::{isa::Isa, level::Instructions},
};

/// The instructions of one level for attention with operands in a format.
pub(crate) trait AttentionKernel<F: Operand>: Send + Sync {
    /// The most rows of a tile.
    fn rows(&self) -> usize;
    /// How a chunk of keys and values is laid out for heads of `head_dim` dimensions.
    fn layout(&self, head_dim: usize) -> Layout;
    /// Words that one row occupies in a chunk of the packed left operand.
    fn row_words(&self) -> usize;
    /// Words that a panel's width of consecutive terms occupies in a row of the left operand.
    fn left_words(&self) -> usize;

    /// Packs rows of keys and values into a chunk.
    fn fill(&self, fill: Fill<F>);
    /// Packs a tile's queries, multiplied by the scale.
    fn pack_queries(&self, queries: PackQueries<F>);
    /// Multiplies packed rows with a panel that is in the cache.
    fn multiply(&self, tile: NearTile<F>);
    /// Turns products into scores, and updates the rows' maxima.
    fn score(&self, score: Score);
    /// Computes and packs exponentials, and adds them to the rows' sums.
    fn exponentiate(&self, exponentials: Exponentiate<F>);
    /// Divides totals by sums, and writes the results.
    fn finish(&self, finish: DivideTotals);
}

impl<F: Operand, D: OperandDots<F>> AttentionKernel<F> for D {
    fn rows(&self) -> usize {
        D::ROWS
    }

    fn layout(&self, head_dim: usize) -> Layout {
        Layout::new::<F>(D::PANEL, head_dim)
    }

    fn row_words(&self) -> usize {
        D::ROW_WORDS
    }

    fn left_words(&self) -> usize {
        D::LEFT_WORDS
    }

    fn fill(&self, fill: Fill<F>) {
        self.enter(fill);
    }

    fn pack_queries(&self, queries: PackQueries<F>) {
        self.enter(queries);
    }

    fn multiply(&self, tile: NearTile<F>) {
        self.enter(tile);
    }

    fn score(&self, score: Score) {
        self.vectors().enter(score);
    }

    fn exponentiate(&self, exponentials: Exponentiate<F>) {
        self.enter(exponentials);
    }

    fn finish(&self, finish: DivideTotals) {
        self.vectors().enter(finish);
    }
}

/// A format that every level has a kernel for.
pub(crate) trait WithAttentionKernel: Operand {
    /// The kernel of a level. It holds nothing, so that the box takes no memory.
    fn kernel(isa: Isa) -> Box<dyn AttentionKernel<Self>>;
}

impl WithAttentionKernel for f32 {
    fn kernel(isa: Isa) -> Box<dyn AttentionKernel<Self>> {
        choose!(isa, level => level.avx512(), level => level.avx512())
    }
}

impl WithAttentionKernel for bf16 {
    fn kernel(isa: Isa) -> Box<dyn AttentionKernel<Self>> {
        choose!(isa, level => level.avx512(), level => level)
    }
}
