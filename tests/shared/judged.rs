//! The fixtures that judge the committed checkpoints.

use candle_blocks::{trace::TraceInput, verify::Fixture};

use crate::committed::{Committed, fixture_name};

impl Committed {
    pub fn fixture(&self) -> Fixture {
        let path = self.folder().join(fixture_name(self.part));
        Fixture::open(path).unwrap_or_else(|e| panic!("{}: {e}", self.label()))
    }
}

/// Returns a fixture's inputs.
pub fn input(fixture: &Fixture) -> TraceInput {
    TraceInput::new(|name| fixture.tensor(name).cloned()).unwrap()
}
