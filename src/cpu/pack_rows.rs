//! The left operand in the order in which the micro-kernel reads it, in any format.
//!
//! Chunks of [`Format::CHUNK`] columns, in each the rows one after the other: tiles of any height can be cut
//! from it, and a producer can write it without knowing them.

use std::ops::Range;

use bytemuck::cast_slice_mut;

use super::{
    Element,
    arch::Vectors,
    format::{DotTask, Dots, Format},
    pack::GatherRows,
    parallel,
    rows::PackedTarget,
    tile::CHUNK,
    view::View,
};

/// Packs some rows in all chunks: what a [`PackedRows`](super::rows::PackedRows) is of.
pub fn pack_rows<F: Format, D: Dots<F>>(
    d: D,
    a: View<F::Number>,
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
        return pack_whole_rows(d, a, rows, packed, threads);
    }
    parallel::for_pieces(
        threads,
        packed,
        rows.len() * D::ROW_WORDS,
        |chunk, packed| {
            let columns = chunk * F::CHUNK..depth.min((chunk + 1) * F::CHUNK);
            d.run(PackRows {
                a,
                rows: rows.clone(),
                columns,
                packed,
            });
        },
    );
}

/// Packs rows that lie whole, each from end to end, as they are read fastest.
fn pack_whole_rows<F: Format, D: Dots<F>>(
    d: D,
    a: View<F::Number>,
    rows: Range<usize>,
    packed: &mut [F::Word],
    threads: usize,
) {
    let (depth, n_rows) = (a.columns(), rows.len());
    let packed = PackedTarget::new(packed, n_rows, depth, D::CHUNKS);
    parallel::for_tasks(threads, n_rows.div_ceil(ROWS_PER_TASK), |task| {
        for row in task * ROWS_PER_TASK..n_rows.min((task + 1) * ROWS_PER_TASK) {
            // `for_tasks` gives each number out once, and no two tasks have a row in common.
            d.run(PackRow::<F> {
                row: a.row(rows.start + row, 0..depth),
                i: row,
                to: &packed,
            });
        }
    });
}

/// Packs all of one row, which nobody else has.
pub struct PackRow<'a, F: Format> {
    /// All its numbers.
    pub row: &'a [F::Number],
    /// Which row of the target it becomes.
    pub i: usize,
    /// Where to.
    pub to: &'a PackedTarget<'a, F::Word>,
}

impl<F: Format> DotTask<F> for PackRow<'_, F> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, d: D) {
        for (chunk, terms) in self.row.chunks(F::CHUNK).enumerate() {
            // SAFETY: each row is given out once.
            d.pack_row(terms, unsafe { self.to.chunk(chunk, self.i..self.i + 1) });
        }
    }
}

/// Rows of the left operand that are packed together.
const ROWS_PER_TASK: usize = 16;

/// Packed words below which packing stays on the calling thread.
pub(super) const PACK_PARALLEL_FROM: usize = 1 << 16;

/// Packs some rows of the left operand, in one chunk of columns: `[rows, Dots::ROW_WORDS]`.
pub struct PackRows<'a, F: Format> {
    /// The left operand.
    pub a: View<'a, F::Number>,
    /// Which rows.
    pub rows: Range<usize>,
    /// At most a chunk.
    pub columns: Range<usize>,
    /// Where to.
    pub packed: &'a mut [F::Word],
}

/// Rows of a matrix without whole rows that are gathered at a time.
const GATHERED: usize = 16;

/// Columns of the longest chunk of any format.
const MOST_COLUMNS: usize = 2 * CHUNK;

impl<F: Format> DotTask<F> for PackRows<'_, F> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, d: D) {
        let Self { a, columns, .. } = self;
        const { assert!(F::CHUNK <= MOST_COLUMNS) };
        assert!(columns.len() <= F::CHUNK && self.packed.len() >= self.rows.len() * D::ROW_WORDS);
        if a.has_whole_rows() {
            let packed = self.packed.chunks_exact_mut(D::ROW_WORDS);
            for (row, words) in self.rows.zip(packed) {
                d.pack_row(a.row(row, columns.clone()), words);
            }
            return;
        }
        if F::NUMBERS {
            let packed = cast_slice_mut(self.packed);
            return d.vectors().run(GatherRows {
                a,
                rows: self.rows,
                columns,
                gathered: packed,
                stride: F::CHUNK,
            });
        }
        let mut packed = self.packed.chunks_exact_mut(D::ROW_WORDS);
        let mut gathered = [F::Number::ZERO; GATHERED * MOST_COLUMNS];
        for first in self.rows.clone().step_by(GATHERED) {
            let rows = first..self.rows.end.min(first + GATHERED);
            let n_rows = rows.len();
            d.vectors().run(GatherRows {
                a,
                rows,
                columns: columns.clone(),
                gathered: &mut gathered,
                stride: F::CHUNK,
            });
            for (row, words) in gathered
                .chunks_exact(F::CHUNK)
                .take(n_rows)
                .zip(&mut packed)
            {
                d.pack_row(&row[..columns.len()], words);
            }
        }
    }
}
