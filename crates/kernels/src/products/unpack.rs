//! Unpacks rows from a packed weight, for embeddings that share their weight with the output head.

use super::{Format, WIDTH};
use crate::vectors::{Task, Vectors};

/// Copies one column's words out of a panel.
pub struct UnpackColumn<'a, F: Format> {
    pub panel: &'a [F::Word],
    pub column: usize,
    /// The column's words.
    pub words: &'a mut [F::Word],
}

impl<F: Format, V: Vectors<F::Element>> Task<V> for UnpackColumn<'_, F> {
    #[inline(always)]
    fn compute(self, _: V) {
        let (vector, lane) = (self.column / V::LANES * V::LANES, self.column % V::LANES);
        let rows = self.panel.chunks_exact(WIDTH * V::LANES);
        for (row, word) in rows.zip(self.words) {
            *word = F::arranged(&row[vector..vector + V::LANES], lane);
        }
    }
}
