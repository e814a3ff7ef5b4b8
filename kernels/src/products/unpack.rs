//! The rows of a packed weight as numbers again: the words that a model reads where it shares them with its head.

use super::{Dots, Format, WIDTH};
use crate::vectors::Task;

/// Copies the words of a panel's column out of the order in which a product reads them.
pub struct UnpackColumn<'a, F: Format> {
    pub panel: &'a [F::Word],
    pub column: usize,
    /// As many as a packed column has.
    pub words: &'a mut [F::Word],
}

impl<F: Format, D: Dots<F>> Task<D> for UnpackColumn<'_, F> {
    #[inline(always)]
    fn compute(self, _: D) {
        let lanes = D::PANEL / WIDTH;
        let (vector, lane) = (self.column / lanes * lanes, self.column % lanes);
        let rows = self.panel.chunks_exact(D::PANEL);
        for (i, (row, word)) in rows.zip(self.words).enumerate() {
            *word = D::arranged(i, &row[vector..vector + lanes], lane);
        }
    }
}
