//! The positions that a layer has computed.

/// The positions that a layer has computed, and those that a window may have dropped since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Computed {
    /// The number of positions, with padding and dropped ones.
    pub positions: usize,
    /// The first position whose query needs none of the rows that a window has dropped.
    pub first_complete: usize,
}

impl Computed {
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
