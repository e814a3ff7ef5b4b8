//! What attention asks of a level's instructions: a table of functions for each format of operands, as
//! [`products::kernel`](crate::products::kernel) for products.

use half::bf16;

use super::{
    DivideTotals, Exponentiate, Fill, Layout, NearTile, Operand, OperandDots, PackQueries, Score,
};
use crate::products::kernel::{kernel, with_kernel};
#[cfg(target_arch = "x86_64")]
use crate::products::tiles::TileKernel;
use crate::vectors::{Instructions, Isa};

kernel! {
    /// The instructions of one level for attention with operands in a format.
    pub(crate) trait AttentionKernel<F: Operand> of D: OperandDots;
    facts {
        /// The most rows of a tile.
        rows() -> usize { D::ROWS }
        /// How a chunk of keys and values is laid out for heads of `head_dim` dimensions.
        layout(head_dim: usize) -> Layout { Layout::new::<F>(D::PANEL, head_dim) }
        /// Words that one row occupies in a chunk of the packed left operand.
        row_words() -> usize { D::ROW_WORDS }
        /// Words that a panel's width of consecutive terms occupies in a row of the left operand.
        left_words() -> usize { D::LEFT_WORDS }
    }
    tasks {
        /// Packs rows of keys and values into a chunk.
        dots fill(Fill<F>);
        /// Packs a tile's queries, multiplied by the scale.
        dots pack_queries(PackQueries<F>);
        /// Multiplies packed rows with a panel that is in the cache.
        dots multiply(NearTile<F>);
        /// Turns products into scores, and updates the rows' maxima.
        vectors score(Score);
        /// Computes and packs exponentials, and adds them to the rows' sums.
        dots exponentiate(Exponentiate<F>);
        /// Divides totals by sums, and writes the results.
        vectors divide(DivideTotals);
    }
    tiles {
        /// Calls `work` with the thread's tile registers ready for tiles of so many rows. Each `multiply` must be within
        /// such a call.
        fn with_tiles(&self, _rows: usize, work: &mut dyn FnMut()) {
            work();
        }
    }
}

/// A format that every level has a kernel for.
pub(crate) trait WithAttentionKernel: Operand {
    /// The kernel of a level. It holds nothing, so that the box takes no memory.
    fn kernel(isa: Isa) -> Box<dyn AttentionKernel<Self>>;
}

with_kernel!(WithAttentionKernel AttentionKernel f32);
with_kernel!(
    WithAttentionKernel AttentionKernel bf16,
    neon level => level.neon(), level => level,
    avx512 level => level.avx512(), level => level, level => TileKernel(level)
);
