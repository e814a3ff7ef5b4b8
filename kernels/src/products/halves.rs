//! One matrix in a panel, or two side by side.

use super::WIDTH;

/// What the columns of a packed matrix consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    /// The columns of one matrix.
    One,
    /// Those of two matrices, interleaved so that a vector of the gate's columns lies beside a vector of up's:
    /// both results of a gated feed-forward meet in one tile.
    GateAndUp,
}

impl Halves {
    /// Columns of the result that a panel of `width` columns holds.
    pub fn columns_per_panel(self, width: usize) -> usize {
        match self {
            Self::One => width,
            Self::GateAndUp => width / WIDTH,
        }
    }
}
