//! Packs the left operand, in any format: `[chunk][row][ROW_WORDS]`.
//!
//! Within each chunk with [`Format::CHUNK`] columns the rows follow each other. Tiles with any height can be cut
//! from this layout, and a producer (a norm, or another product's epilogue) can write it without knowing the tile
//! height.

use std::ops::Range;

use bytemuck::cast_slice_mut;

use super::{CHUNK, Dots, Format, PackedTarget, View, transpose::GatherRows};
use crate::vectors::{Element, Task};

/// Packs all chunks in one row.
pub struct PackRow<'a, F: Format> {
    /// The whole row.
    row: &'a [F::Element],
    /// The row's number in the target.
    i: usize,
    to: &'a PackedTarget<'a, F::Word>,
}

impl<'a, F: Format> PackRow<'a, F> {
    /// Creates a task that writes `row` to the target's row `i`.
    ///
    /// # Safety
    /// While the task runs, no other borrow of this target row is in use.
    pub unsafe fn new(row: &'a [F::Element], i: usize, to: &'a PackedTarget<'a, F::Word>) -> Self {
        Self { row, i, to }
    }
}

impl<F: Format, D: Dots<F>> Task<D> for PackRow<'_, F> {
    #[inline(always)]
    fn compute(self, d: D) {
        let part = self.to.part();
        if self.row.is_empty() {
            // An empty row has one chunk with depth 0, because a format's scales are read all the same.
            // SAFETY: the promise by `new`'s caller.
            d.pack_row(&[], part, unsafe { self.to.chunk(0, self.i..self.i + 1) });
        }
        for (chunk, terms) in self.row.chunks(F::CHUNK).enumerate() {
            // SAFETY: as above.
            d.pack_row(terms, part, unsafe {
                self.to.chunk(chunk, self.i..self.i + 1)
            });
        }
    }
}

/// Packs some rows of the left operand in one column chunk, as `[row][Dots::ROW_WORDS]`.
pub struct PackRows<'a, F: Format> {
    /// The left operand.
    pub a: View<'a, F::Element>,
    /// The rows to pack.
    pub rows: Range<usize>,
    /// The columns to pack, at most a chunk.
    pub columns: Range<usize>,
    /// Columns per part.
    pub part: usize,
    /// The destination.
    pub packed: &'a mut [F::Word],
}

/// Rows gathered at a time from a matrix whose rows are not contiguous.
const GATHERED: usize = 16;

/// The longest chunk in any format.
const MAX_CHUNK: usize = 2 * CHUNK;

impl<F: Format, D: Dots<F>> Task<D> for PackRows<'_, F> {
    #[inline(always)]
    fn compute(self, d: D) {
        let Self {
            a, columns, part, ..
        } = self;
        const { assert!(F::CHUNK <= MAX_CHUNK) };
        assert!(columns.len() <= F::CHUNK && self.packed.len() >= self.rows.len() * D::ROW_WORDS);
        if a.has_whole_rows() {
            let packed = self.packed.chunks_exact_mut(D::ROW_WORDS);
            for (row, words) in self.rows.zip(packed) {
                d.pack_row(a.row(row, columns.clone()), part, words);
            }
            return;
        }
        if F::PLAIN {
            let packed = cast_slice_mut(self.packed);
            let gather = GatherRows {
                a,
                rows: self.rows,
                columns,
                gathered: packed,
                stride: F::CHUNK,
            };
            return gather.gather(d.vectors());
        }
        let mut packed = self.packed.chunks_exact_mut(D::ROW_WORDS);
        let mut gathered = [F::Element::ZERO; GATHERED * MAX_CHUNK];
        for first in self.rows.clone().step_by(GATHERED) {
            let rows = first..self.rows.end.min(first + GATHERED);
            let n_rows = rows.len();
            let gather = GatherRows {
                a,
                rows,
                columns: columns.clone(),
                gathered: &mut gathered,
                stride: F::CHUNK,
            };
            gather.gather(d.vectors());
            for (row, words) in gathered
                .chunks_exact(F::CHUNK)
                .take(n_rows)
                .zip(&mut packed)
            {
                d.pack_row(&row[..columns.len()], part, words);
            }
        }
    }
}
