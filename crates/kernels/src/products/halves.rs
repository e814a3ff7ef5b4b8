//! Panels that hold one matrix, or two interleaved matrices.

use super::WIDTH;

/// The matrices in a packed right operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    /// A matrix.
    One,
    /// A gated feed-forward's gate and up matrices, interleaved: a gate column vector is followed by up's same
    /// columns, so that both results are in one tile.
    GateAndUp,
}

impl Halves {
    /// Returns how many result columns a panel with `width` columns holds.
    pub fn columns_per_panel(self, width: usize) -> usize {
        match self {
            Self::One => width,
            Self::GateAndUp => width / WIDTH,
        }
    }
}
