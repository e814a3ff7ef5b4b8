//! Keys and values: just projected, or packed before.

use std::ops::Range;

use super::{Heads, KeyValuePanels, OperandFormat, Sequences, Shape};
use crate::vectors::Isa;

/// What the queries attend to.
#[derive(Clone, Copy, Debug)]
pub enum KeyValue<'a> {
    /// Keys and values that a projection has just made.
    Projected {
        /// The positions of each sequence.
        keys: Sequences<'a>,
        /// Keys of `n_kv_heads` heads.
        key: Heads<'a>,
        /// Values of `n_kv_heads` heads.
        value: Heads<'a>,
    },
    /// Positions packed before, numbered from the first that was ever appended.
    Packed(&'a KeyValuePanels),
}

impl KeyValue<'_> {
    /// The positions that a sequence has keys at.
    pub(crate) fn positions(&self, sequence: usize) -> Range<usize> {
        match self {
            Self::Projected { keys, .. } => 0..keys.rows(sequence).len(),
            Self::Packed(panels) => panels.positions(),
        }
    }

    /// The end of the positions of the longest sequence.
    pub(crate) fn longest(&self) -> usize {
        match self {
            Self::Projected { keys, .. } => keys.longest(),
            Self::Packed(panels) => panels.positions().end,
        }
    }

    /// # Panics
    /// If the lengths do not fit, or the panels are of another level, format or shape.
    pub(crate) fn check(&self, isa: Isa, stored: OperandFormat, shape: &Shape) {
        match self {
            Self::Projected { keys, key, value } => {
                keys.check();
                assert_eq!(keys.batch(), shape.queries.batch(), "sequences of keys");
                let width = shape.n_kv_heads * shape.head_dim;
                key.check(keys.n_rows(), width);
                value.check(keys.n_rows(), width);
            }
            Self::Packed(panels) => panels.check(isa, stored, shape),
        }
    }
}
