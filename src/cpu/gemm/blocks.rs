//! The rows of a product divided among threads.

use std::ops::Range;

use super::{super::parallel, BLOCK_ROWS, part};

/// Bytes of packed rows that stay in the second cache while panels go by: half of the 1 MiB that
/// is usual.
pub const CACHED_BYTES: usize = 512 << 10;

/// Bytes of a weight that the last cache is taken to keep.
const SMALL_WEIGHT: usize = 16 << 20;

/// Tiles of rows that reading small weights for does not show.
const FEW_TILES: usize = 2;

/// The same of weights that come from memory.
const MANY_TILES: usize = 8;

/// What decides how rows are divided.
pub struct Rows {
    /// How many.
    pub len: usize,
    /// Of a tile.
    pub per_tile: usize,
    /// Of a row's operands, packed.
    pub row_bytes: usize,
    /// Of the right operand, which is packed.
    pub weight_bytes: usize,
}

impl Rows {
    /// Calls `work(rows, threads)` for parts of the rows, with the threads that are to compute it.
    ///
    /// With rows enough, each thread takes parts of its own through all columns, whose hidden activations no other
    /// cache has to give. With fewer, all take the same rows, and columns of their own.
    pub fn for_blocks(&self, threads: usize, work: impl Fn(Range<usize>, usize) + Sync) {
        // Every part reads the whole weight.
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
