//! Cross-attention.

use candle_core::{Result, bail};

use super::scores::{Attended, rows};
use super::{Attention, QueryKeyValue};
use crate::layers::{mask::KeySource, pass::Pass, state::EncoderState};
use crate::ops::{BiasTensor, Value, Visible};

impl Attention {
    /// Computes attention to the encoder output, whose keys and values `state` keeps, and adds it to `residual`.
    /// The encoder output has no order here: rotary embedding, visibility and window in the configuration do not
    /// apply.
    pub(in crate::layers) fn apply_cross(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut EncoderState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        if let Some(packed) = &self.packed {
            return packed.apply_cross(x, pass, state, residual);
        }
        let train = pass.context.train();
        let encoder = pass.encoder_output(&self.config)?;
        let QueryKeyValue::Separate { query, key, value } = &self.projections else {
            bail!("cross-attention needs separate projections of query, key and value")
        };
        let norms = self.norms.as_ref();
        let query = query.apply(x, None, train)?;
        let query = self.prepared(query, norms.map(|norms| &norms.query[..]))?;
        let project = || -> Result<(Value, Value)> {
            let states = x.beside(encoder.hidden_states)?;
            let key = key.apply(&states, None, train)?;
            let key = self.prepared(key, norms.map(|norms| &norms.key[..]))?;
            let value = value.apply(&states, None, train)?;
            Ok((key, self.normal_values(self.prepared(value, None)?)?))
        };
        let (key, value) = match state {
            None => project()?,
            Some(state) => {
                let known = state.rows((pass.batch, encoder.keys), || {
                    let (key, value) = project()?;
                    let rows = |of: Value| rows(of, pass.batch, encoder.keys);
                    Ok((rows(key)?, rows(value)?))
                })?;
                (query.beside(&known.0)?, query.beside(&known.1)?)
            }
        };
        let has_mask = encoder.additive.is_some();
        let added = encoder.additive.into_iter().map(BiasTensor::by_score);
        let attended = Attended {
            key,
            value,
            keys: (KeySource::Encoder, encoder.keys),
            visible: Visible {
                keep: encoder.keep.map(|keep| &keep.device),
                on_host: encoder.keep.map(|keep| &keep.host),
                ..Visible::default()
            },
            relative: None,
            added: added.collect(),
            has_mask,
        };
        self.attend(&query, &attended, pass, x, residual)
    }
}
