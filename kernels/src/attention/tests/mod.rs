//! Attention against f64, and against itself in every circumstance that must not change a bit. Every level runs
//! the same checks.

mod cached;
mod case;
mod exact;
mod same_bits;
mod unseen;

use std::ops::Range;

use half::bf16;

use super::{
    Bias, Heads, KeyValue, KeyValuePanels, OperandFormat, PanelShape, Scoring, Sequences, Shape,
    attend,
};
use crate::{products::Format, reference::on, vectors::Isa};

/// An instruction set, and how operands are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Way {
    pub isa: Isa,
    pub stored: OperandFormat,
}

/// Every level with every format.
pub(super) fn ways() -> Vec<Way> {
    let levels = Isa::levels().into_iter();
    let ways = levels.flat_map(|isa| {
        [OperandFormat::F32, OperandFormat::Bf16].map(|stored| Way { isa, stored })
    });
    ways.collect()
}

/// The fastest level, with the format in which most can go wrong.
fn best() -> Way {
    Way {
        isa: Isa::best(),
        stored: OperandFormat::Bf16,
    }
}

impl Way {
    fn name(self) -> String {
        format!("{} {:?}", self.isa.name(), self.stored)
    }

    /// Positions in a chunk.
    fn chunk(self) -> usize {
        match self.stored {
            OperandFormat::F32 => <f32 as Format>::CHUNK,
            OperandFormat::Bf16 => <bf16 as Format>::CHUNK,
        }
    }
}

#[track_caller]
fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differ = |i: &usize| found[*i].to_bits() != expected[*i].to_bits();
    let wrong: Vec<usize> = (0..found.len()).filter(differ).collect();
    if let Some(&first) = wrong.first() {
        panic!(
            "{what}: {} of {} differ, the first {first}: {:e}, expected {:e}",
            wrong.len(),
            found.len(),
            found[first],
            expected[first]
        );
    }
}
