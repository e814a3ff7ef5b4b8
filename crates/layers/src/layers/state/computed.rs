//! The positions that a layer has computed.

use candle_core::Result;

use super::{Given, Ledger};

/// The positions that a layer has computed, and those that a window may have dropped since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Computed {
    /// The number of positions, with padding and dropped ones.
    pub positions: usize,
    /// The first position whose query needs none of the rows that a window has dropped.
    pub first_complete: usize,
}

impl Computed {
    /// Returns the values for a cache's tensors.
    pub fn numbers(self) -> [usize; 2] {
        [self.positions, self.first_complete]
    }

    /// Returns what a cache's tensors have.
    ///
    /// # Errors
    /// If the layer has not computed all positions.
    pub fn restored(given: &Given, numbers: [usize; 2], ledger: &Ledger) -> Result<Self> {
        let [positions, first_complete] = numbers;
        if positions != ledger.seen() || first_complete > positions {
            return given.other_positions(numbers, ledger.seen());
        }
        Ok(Self {
            positions,
            first_complete,
        })
    }

    /// Covers another batch too. `paddings` are the positions that each batch gets as padding before its own.
    pub fn join(&mut self, other: Self, paddings: [usize; 2]) {
        let later = |own: usize, other: usize| (own + paddings[0]).max(other + paddings[1]);
        self.positions = later(self.positions, other.positions);
        self.first_complete = later(self.first_complete, other.first_complete);
    }

    /// Removes all but the first `seen` positions.
    pub fn truncate(&mut self, seen: usize) {
        self.positions = self.positions.min(seen);
    }
}
