//! Attention against f64, and against itself in every circumstance that must not change a bit. Every level runs
//! the same checks.

mod cached;
mod case;
mod exact;
mod same_bits;
mod unseen;

use std::{fmt, ops::Range};

use half::bf16;

use super::{
    Bias, Heads, KeyValue, KeyValuePanels, OperandFormat, PanelShape, Scoring, Sequences, Shape,
    attend,
};
use crate::{
    products::Format,
    reference::{assert_same, on},
    vectors::Isa,
};

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

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {}", self.isa, self.stored)
    }
}

impl Way {
    /// Positions in a chunk.
    fn chunk(self) -> usize {
        match self.stored {
            OperandFormat::F32 => <f32 as Format>::CHUNK,
            OperandFormat::Bf16 => <bf16 as Format>::CHUNK,
        }
    }
}
