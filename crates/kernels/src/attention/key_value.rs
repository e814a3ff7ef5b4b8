//! Keys and values: unpacked projections, or packed panels.

use std::ops::Range;

use super::{Heads, KeyValuePanels, OperandFormat, Sequences, Shape};
use crate::vectors::Isa;

/// The keys and values that queries attend to.
#[derive(Clone, Copy, Debug)]
pub enum KeyValue<'a> {
    /// Unpacked keys and values, as a projection wrote them.
    Projected {
        /// The positions in each sequence.
        keys: Sequences<'a>,
        /// Keys in `n_kv_heads` heads.
        key: Heads<'a>,
        /// Values in `n_kv_heads` heads.
        value: Heads<'a>,
    },
    /// Each sequence's packed positions, numbered from the first one ever appended.
    Packed(&'a [KeyValuePanels]),
}

impl KeyValue<'_> {
    /// Returns one sequence's key positions.
    pub(crate) fn positions(&self, sequence: usize) -> Range<usize> {
        match self {
            Self::Projected { keys, .. } => 0..keys.rows(sequence).len(),
            Self::Packed(panels) => panels[sequence].positions(),
        }
    }

    /// Returns the end of the longest sequence's positions.
    pub(crate) fn longest(&self) -> usize {
        match self {
            Self::Projected { keys, .. } => keys.longest(),
            Self::Packed(panels) => {
                let ends = panels.iter().map(|panels| panels.positions().end);
                ends.max().unwrap_or(0)
            }
        }
    }

    /// Checks lengths and panels.
    ///
    /// # Panics
    /// If lengths do not match, or the panels are for another instruction set, format or shape.
    pub(crate) fn check(&self, isa: Isa, stored: OperandFormat, shape: &Shape) {
        match self {
            Self::Projected { keys, key, value } => {
                keys.check();
                assert_eq!(
                    keys.batch(),
                    shape.queries.batch(),
                    "keys and queries differ in batch size"
                );
                let width = shape.n_kv_heads * shape.head_dim;
                key.check(keys.n_rows(), width);
                value.check(keys.n_rows(), width);
            }
            Self::Packed(panels) => {
                assert_eq!(
                    panels.len(),
                    shape.queries.batch(),
                    "panels and queries differ in batch size"
                );
                panels
                    .iter()
                    .for_each(|panels| panels.check(isa, stored, shape));
            }
        }
    }
}
