//! Attention compared with f64, and with itself under every condition that must not change a bit. Every instruction
//! set runs the same checks.

mod cached;
mod case;
mod exact;
mod same_bits;
mod unseen;

use std::{fmt, ops::Range};

use half::bf16;

use super::{
    Bias, BiasLayout, Heads, KeyValue, KeyValuePanels, OperandFormat, Origin, PanelShape, Scoring,
    Sequences, Shape, attend,
};
use crate::{
    products::Format,
    reference::{assert_same, on, random},
    vectors::Isa,
};

/// An instruction set, and a storage format for operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Way {
    pub isa: Isa,
    pub stored: OperandFormat,
}

/// Returns every instruction set with every format.
pub(super) fn ways() -> Vec<Way> {
    let levels = Isa::levels().into_iter();
    let ways = levels.flat_map(|isa| {
        [OperandFormat::F32, OperandFormat::Bf16].map(|stored| Way { isa, stored })
    });
    ways.collect()
}

/// Returns the fastest instruction set, with the format that exercises the most code.
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
    /// Returns the positions per chunk.
    fn chunk(self) -> usize {
        match self.stored {
            OperandFormat::F32 => <f32 as Format>::CHUNK,
            OperandFormat::Bf16 => <bf16 as Format>::CHUNK,
        }
    }
}
