//! The rows of a packed weight as numbers again: the words that a model reads where it shares them with its head.

use super::{Format, WIDTH};
use crate::vectors::{Task, Vectors};

/// Copies the words of a panel's column out of the order in which a product reads them.
pub struct UnpackColumn<'a, F: Format> {
    pub panel: &'a [F::Word],
    pub column: usize,
    /// As many as a packed column has.
    pub words: &'a mut [F::Word],
}

impl<F: Format, V: Vectors<F::Number>> Task<V> for UnpackColumn<'_, F> {
    #[inline(always)]
    fn compute(self, _: V) {
        let (vector, lane) = (self.column / V::LANES * V::LANES, self.column % V::LANES);
        let rows = self.panel.chunks_exact(WIDTH * V::LANES);
        for (row, word) in rows.zip(self.words) {
            *word = F::arranged(&row[vector..vector + V::LANES], lane);
        }
    }
}
