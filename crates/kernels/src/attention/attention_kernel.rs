//! The interface between attention and an instruction set: a function table for each operand format, like
//! [`products::kernel`](crate::products::kernel).

use half::bf16;

use super::{
    DivideTotals, Exponentiate, Fill, Layout, NearTile, Operand, OperandDots, PackQueries, Score,
};
use crate::products::kernel::{kernel, with_kernel};
#[cfg(target_arch = "x86_64")]
use crate::products::tiles::TileKernel;
use crate::vectors::{Instructions, Isa};

kernel! {
    /// An instruction set's functions for attention with operands in a format.
    pub(crate) trait AttentionKernel<F: Operand> of D: OperandDots;
    facts {
        /// Returns the maximum row count in a tile.
        rows() -> usize { D::ROWS }
        /// Returns the layout for a chunk with keys and values, in heads with `head_dim` dimensions.
        layout(head_dim: usize) -> Layout { Layout::new::<F>(D::PANEL, head_dim) }
        /// Returns how many words one row takes in a packed left operand chunk.
        row_words() -> usize { D::ROW_WORDS }
        /// Returns how many words one panel width along the depth takes in a left operand row.
        left_words() -> usize { D::LEFT_WORDS }
    }
    tasks {
        /// Packs rows with keys and values into a chunk.
        dots fill(Fill<F>);
        /// Packs a tile's queries, multiplied by the scale.
        dots pack_queries(PackQueries<F>);
        /// Multiplies packed rows by a panel that is in the cache.
        dots multiply(NearTile<F>);
        /// Converts products to scores, and updates the rows' maxima.
        vectors score(Score);
        /// Computes and packs exponentials, and adds them to the rows' sums.
        dots exponentiate(Exponentiate<F>);
        /// Divides totals by sums, and writes the results.
        vectors divide(DivideTotals);
    }
    tiles {
        /// Calls `work` with the thread's tile registers configured for tiles with this row count. Every `multiply`
        /// must run within such a call.
        fn with_tiles(&self, _rows: usize, work: &mut dyn FnMut()) {
            work();
        }
    }
}

/// A format that has a kernel for every instruction set.
pub(crate) trait WithAttentionKernel: Operand {
    /// Returns the kernel for an instruction set. A kernel has no fields, so the box does not allocate.
    fn kernel(isa: Isa) -> Box<dyn AttentionKernel<Self>>;
}

with_kernel!(WithAttentionKernel AttentionKernel f32);
with_kernel!(
    WithAttentionKernel AttentionKernel bf16,
    neon level => level.neon(), level => level,
    avx512 level => level.avx512(), level => level, level => TileKernel(level)
);
