//! Packs a tile's queries.

use super::{Operand, OperandDots, QueryRows, TilePlan};
use crate::products::{MAX_PANEL, WIDTH};
use crate::vectors::{Task, Vectors};

/// Packs a tile's queries, multiplied by the scale, as the left operand.
pub(crate) struct PackQueries<'a, F: Operand> {
    pub(crate) of: &'a QueryRows<'a>,
    pub(crate) plan: &'a TilePlan,
    pub(crate) packed: &'a mut [F::Word],
}

impl<F: Operand, D: OperandDots<F>> Task<D> for PackQueries<'_, F> {
    #[inline(always)]
    fn compute(self, d: D) {
        let v = d.vectors();
        let n_rows = self.plan.rows().len();
        let scale = v.splat(self.of.group.scoring.scale);
        let mut padded = [0.0; MAX_PANEL];
        for (i, &row) in self.plan.rows().iter().enumerate() {
            for (chunk, query) in self.of.query(row).chunks(F::CHUNK).enumerate() {
                let packed =
                    &mut self.packed[(chunk * n_rows + i) * D::ROW_WORDS..][..D::ROW_WORDS];
                let packed = packed.chunks_exact_mut(D::LEFT_WORDS);
                for (query, packed) in query.chunks(D::PANEL).zip(packed) {
                    let query = if query.len() == D::PANEL {
                        query
                    } else {
                        padded[..query.len()].copy_from_slice(query);
                        &padded
                    };
                    let mut terms = [scale; WIDTH];
                    for (j, terms) in terms.iter_mut().enumerate() {
                        // SAFETY: `query` holds WIDTH vectors.
                        let query = unsafe { v.load(query.as_ptr().add(j * (D::PANEL / WIDTH))) };
                        *terms = v.multiply(query, scale);
                    }
                    // SAFETY: `packed` holds LEFT_WORDS words.
                    unsafe { d.pack_left(terms, packed.as_mut_ptr()) };
                }
            }
        }
    }
}
