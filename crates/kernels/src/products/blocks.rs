//! Blocking of a product's rows, and their distribution among threads.

use std::ops::Range;

use crate::threads::parallel::{self, part};

/// The maximum row count that threads pack together. It is large enough to amortize reading the right operand once
/// per block, and small enough to keep the working memory small. If there are more rows, an unpacked right operand
/// is packed as a whole first.
pub const BLOCK_ROWS: usize = 256;

/// Blocking parameters for one kernel type.
#[derive(Clone, Copy, Debug)]
pub struct Blocking {
    /// Packed row bytes that stay in the L2 cache while panels stream through.
    pub cached_bytes: usize,
    /// Size in bytes up to which a weight is read from a cache fast enough for blocks with few tiles.
    small_weight: usize,
    /// Row counts are multiples of this power of two, except in the last part. A power of two, because each tile
    /// computes its part.
    multiple_log2: u32,
}

impl Blocking {
    /// Blocking for vector kernels: half a typical 1 MiB L2 cache, weights that are assumed to stay in the
    /// last-level cache, and any row count, because vector kernels have tiles of every height.
    pub const OF_VECTORS: Self = Self {
        cached_bytes: 512 << 10,
        small_weight: 16 << 20,
        multiple_log2: 0,
    };

    /// Blocking for tile registers: half these CPUs' 2 MiB L2 cache. Reading a weight is never cheap compared with
    /// their arithmetic. Blocks are whole tiles.
    #[cfg(target_arch = "x86_64")]
    pub const OF_TILES: Self = Self {
        cached_bytes: 1 << 20,
        small_weight: 0,
        multiple_log2: 4,
    };

    /// Returns part `i` of `n` equal parts of `rows` rows.
    pub fn part(&self, rows: usize, n: usize, i: usize) -> Range<usize> {
        let shift = self.multiple_log2;
        let part = part(rows.div_ceil(1 << shift), n, i);
        part.start << shift..rows.min(part.end << shift)
    }
}

/// Tiles per block above which reading a small weight once per block costs next to nothing.
const FEW_TILES: usize = 2;

/// Tiles per block above which reading a weight from memory once per block costs next to nothing.
const MANY_TILES: usize = 8;

/// Inputs for the row blocking.
pub struct RowBlocks {
    /// Rows in the left operand.
    pub len: usize,
    /// Rows in a tile.
    pub per_tile: usize,
    /// Packed operand bytes per row.
    pub row_bytes: usize,
    /// Packed right operand bytes.
    pub weight_bytes: usize,
    pub blocking: Blocking,
}

impl RowBlocks {
    /// Calls `work(rows, threads)` for consecutive row blocks, with the thread count for each block.
    ///
    /// With enough rows, each thread processes its own blocks with all columns, so that hidden activations stay in
    /// the thread's cache. With fewer rows, all threads share one row block and divide its columns.
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
