//! The left operand in the order in which the micro-kernel reads it, in any format.
//!
//! Chunks of [`CHUNK`] columns, in each the rows one after the other: tiles of any height can be cut
//! from it, and a producer can write it without knowing them.

use std::ops::Range;

use super::{
    Element,
    arch::Vectors,
    format::{DotTask, Dots, Format},
    pack::GatherRows,
    tile::CHUNK,
    view::View,
};

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

impl<F: Format> DotTask<F> for PackRows<'_, F> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, d: D) {
        let Self { a, columns, .. } = self;
        assert!(columns.len() <= CHUNK && self.packed.len() >= self.rows.len() * D::ROW_WORDS);
        let mut packed = self.packed.chunks_exact_mut(D::ROW_WORDS);
        if a.has_whole_rows() {
            for (row, words) in self.rows.zip(packed) {
                D::pack_row(a.row(row, columns.clone()), words);
            }
            return;
        }
        let mut gathered = [F::Number::ZERO; GATHERED * CHUNK];
        for first in self.rows.clone().step_by(GATHERED) {
            let rows = first..self.rows.end.min(first + GATHERED);
            let n_rows = rows.len();
            d.vectors().run(GatherRows {
                a,
                rows,
                columns: columns.clone(),
                gathered: &mut gathered,
            });
            for (row, words) in gathered.chunks_exact(CHUNK).take(n_rows).zip(&mut packed) {
                D::pack_row(&row[..columns.len()], words);
            }
        }
    }
}
