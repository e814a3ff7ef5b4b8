//! The scores by distance that the stack's table gives an attention.

use std::sync::Arc;

use candle_core::Result;

use super::Attention;
use crate::layers::pass::Pass;
use crate::ops::{Content, Relative, Term, Value};

/// The terms of a pass by distance.
pub(super) struct DistanceTerms {
    terms: Vec<Term<Content, Value>>,
    rows: Arc<[u32]>,
    scale: f64,
    name: String,
}

impl DistanceTerms {
    /// Returns the terms to add to the scores.
    pub fn relative(&self) -> Relative<'_> {
        Relative {
            terms: &self.terms,
            rows: &self.rows,
            scale: self.scale,
            name: &self.name,
        }
    }
}

impl Attention {
    /// Returns the terms for the input `x`, if the attention has any.
    pub(super) fn relative_terms(&self, x: &Value, pass: &Pass) -> Result<Option<DistanceTerms>> {
        let Some(distances) = self.config.position.distances() else {
            return Ok(None);
        };
        let train = pass.context.train();
        // Masks cover the whole table, as in transformers.
        let all = self.position_dropout.is_on(train);
        let (table, rows) = pass.distances(&distances, all)?;
        let table = self.position_dropout.apply(&x.beside(&table)?, train)?;
        let terms = match &self.bias_gate {
            Some(gate) => vec![gate.term(x, table.widened()?, train)?],
            None => self.disentangled_terms(&table, train)?,
        };
        Ok(Some(DistanceTerms {
            terms,
            rows: rows.rows,
            scale: distances.scale(self.config.scale),
            name: format!("{distances:?} {all}"),
        }))
    }
}
