//! The rows of a product divided into blocks, and the blocks among threads.

use std::ops::Range;

use crate::threads::parallel::{self, part};

/// The most rows that are packed at a time where threads share them: enough to amortise reading the right
/// operand once per block, few enough to keep the working memory small. With more rows than this, an unpacked
/// right operand is packed as a whole first.
pub const BLOCK_ROWS: usize = 256;

/// How a kind of kernel has its rows divided.
#[derive(Clone, Copy, Debug)]
pub struct Blocking {
    /// Bytes of packed rows that stay in the second-level cache while panels stream through.
    pub cached_bytes: usize,
    /// Bytes of the largest weight that comes from a cache fast enough to be read for a few tiles of rows.
    small_weight: usize,
    /// All parts but the last have a multiple of this power of two of rows. A power, since each tile asks for a part.
    multiple_log2: u32,
}

impl Blocking {
    /// Half of the usual second-level cache of 1 MiB; weights that the last-level cache is assumed to keep; any rows, as
    /// kernels of vectors have tiles of every height.
    pub const OF_VECTORS: Self = Self {
        cached_bytes: 512 << 10,
        small_weight: 16 << 20,
        multiple_log2: 0,
    };

    /// Half of the second-level cache of the CPUs that have tiles, 2 MiB; reading a weight is never fast beside what
    /// they multiply; whole tiles.
    #[cfg(target_arch = "x86_64")]
    pub const OF_TILES: Self = Self {
        cached_bytes: 1 << 20,
        small_weight: 0,
        multiple_log2: 4,
    };

    /// Part `i` of `n` of so many rows.
    pub fn part(&self, rows: usize, n: usize, i: usize) -> Range<usize> {
        let shift = self.multiple_log2;
        let part = part(rows.div_ceil(1 << shift), n, i);
        part.start << shift..rows.min(part.end << shift)
    }
}

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
    pub blocking: Blocking,
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
        let blocking = self.blocking;
        let least = if self.weight_bytes <= blocking.small_weight {
            FEW_TILES
        } else {
            MANY_TILES
        };
        let cached = blocking.cached_bytes / self.row_bytes.max(1) / self.per_tile;
        let most = cached.clamp(least, MANY_TILES) * self.per_tile;
        if self.len < threads * least * self.per_tile {
            let n_blocks = self.len.div_ceil(BLOCK_ROWS);
            for block in 0..n_blocks {
                work(blocking.part(self.len, n_blocks, block), threads);
            }
        } else {
            let n_blocks = self.len.div_ceil(most).next_multiple_of(threads);
            parallel::for_tasks(threads, n_blocks, |block| {
                work(blocking.part(self.len, n_blocks, block), 1);
            });
        }
    }
}
