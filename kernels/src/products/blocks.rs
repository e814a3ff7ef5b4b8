//! The rows of a product divided into blocks, and the blocks among threads.

use std::ops::Range;

use crate::threads::parallel::{self, part};

/// The most rows that are packed at a time where threads share them: enough to amortise reading the right
/// operand once per block, few enough to keep the working memory small. With more rows than this, an unpacked
/// right operand is packed as a whole first.
pub const BLOCK_ROWS: usize = 256;

/// Bytes of packed rows that stay in the second-level cache while panels stream through: half of the
/// usual 1 MiB.
pub const CACHED_BYTES: usize = 512 << 10;

/// Bytes of a weight that the last-level cache is assumed to keep.
const SMALL_WEIGHT: usize = 16 << 20;

/// Tiles in a thread's block from which on reading a small weight once per block costs nothing noticeable.
const FEW_TILES: usize = 2;

/// The same for weights that come from memory.
const MANY_TILES: usize = 8;

/// What the division depends on.
pub struct RowBlocks {
    /// Rows of the left operand.
    pub len: usize,
    /// Rows of a tile.
    pub per_tile: usize,
    /// Bytes of a row's packed operands.
    pub row_bytes: usize,
    /// Bytes of the right operand, which is packed.
    pub weight_bytes: usize,
}

impl RowBlocks {
    /// Calls `work(rows, threads)` for consecutive blocks of the rows, with the number of threads that are to
    /// compute each block.
    ///
    /// With enough rows, each thread takes blocks of its own through all columns, so that its hidden
    /// activations never leave its own cache. With fewer, all threads share one block of rows, and divide its
    /// columns.
    pub fn for_blocks(&self, threads: usize, work: impl Fn(Range<usize>, usize) + Sync) {
        // Every block reads the whole weight.
        let least = match self.weight_bytes {
            ..=SMALL_WEIGHT => FEW_TILES,
            _ => MANY_TILES,
        };
        let cached = CACHED_BYTES / self.row_bytes.max(1) / self.per_tile;
        let most = cached.clamp(least, MANY_TILES) * self.per_tile;
        if self.len < threads * least * self.per_tile {
            let n_blocks = self.len.div_ceil(BLOCK_ROWS);
            for block in 0..n_blocks {
                work(part(self.len, n_blocks, block), threads);
            }
        } else {
            let n_blocks = self.len.div_ceil(most).next_multiple_of(threads);
            parallel::for_tasks(threads, n_blocks, |block| {
                work(part(self.len, n_blocks, block), 1);
            });
        }
    }
}
