//! Packs all left operand rows, shared by threads.

use std::ops::Range;

use super::{Chunks, Format, Kernel, PackRow, PackRows, PackedTarget, View};
use crate::threads::parallel;

/// Packs some rows in all chunks, into a [`PackedRows`]' memory(super::packed_rows::PackedRows).
pub fn pack_rows<F: Format>(
    kernel: &dyn Kernel<F>,
    chunks: Chunks,
    a: View<F::Element>,
    rows: Range<usize>,
    packed: &mut [F::Word],
    threads: usize,
) {
    let depth = a.columns();
    let threads = if packed.len() < PACK_PARALLEL_FROM {
        1
    } else {
        threads
    };
    if a.has_whole_rows() {
        return pack_whole_rows(kernel, chunks, a, rows, packed, threads);
    }
    let length = rows.len() * chunks.words;
    parallel::for_chunks(threads, packed, length, |start, packed| {
        let chunk = start / length;
        kernel.pack_rows(PackRows {
            a,
            rows: rows.clone(),
            columns: chunk * F::CHUNK..depth.min((chunk + 1) * F::CHUNK),
            part: chunks.part,
            packed,
        });
    });
}

/// Packs contiguous rows, each from end to end, which is the fastest order for reading them.
fn pack_whole_rows<F: Format>(
    kernel: &dyn Kernel<F>,
    chunks: Chunks,
    a: View<F::Element>,
    rows: Range<usize>,
    packed: &mut [F::Word],
    threads: usize,
) {
    let (depth, n_rows) = (a.columns(), rows.len());
    let packed = PackedTarget::new(packed, n_rows, depth, chunks);
    parallel::for_tasks(threads, n_rows.div_ceil(ROWS_PER_TASK), |task| {
        for row in task * ROWS_PER_TASK..n_rows.min((task + 1) * ROWS_PER_TASK) {
            let numbers = a.row(rows.start + row, 0..depth);
            // SAFETY: `for_tasks` gives out each number once, and no two tasks have a row in common.
            kernel.pack_row(unsafe { PackRow::new(numbers, row, &packed) });
        }
    });
}

/// Rows per task.
const ROWS_PER_TASK: usize = 16;

/// Packed words below which the calling thread packs alone.
pub const PACK_PARALLEL_FROM: usize = 1 << 16;
