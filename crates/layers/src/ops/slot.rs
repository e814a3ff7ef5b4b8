//! A slot: the place at which a value's gradient is added.

use std::ops::Range;

/// The destination for a value's gradient: some columns in the gradient for all its rows.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Slot {
    /// The rows' place on the tape, or `None` if no gradient is required.
    pub place: Option<usize>,
    /// Columns in the rows.
    pub width: usize,
    /// The columns that are the value.
    pub columns: Range<usize>,
}

impl Slot {
    /// Returns a slot with all columns.
    pub fn whole(place: Option<usize>, width: usize) -> Self {
        Self {
            place,
            width,
            columns: 0..width,
        }
    }

    pub fn is_whole(&self) -> bool {
        self.columns.len() == self.width
    }
}
