//! Self-attention.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use super::query_key_norm::normalized;
use super::relative::DistanceTerms;
use super::scores::{Attended, rows};
use super::{Attention, QueryKeyValue};
use crate::layers::{mask::KeySource, pass::KeysAndValues, pass::Pass, state::LayerState};
use crate::ops::{Value, Visible};
use crate::{
    config::{AttentionConfig, Position, QueryKeyNorm, RotaryPairing},
    layers::{Linear, Norm},
};

impl Attention {
    /// Computes self-attention for positions after the cached ones, and adds the output to `residual`. `added`, queries,
    /// keys and values side by side, is added to the projections of the input.
    pub(in crate::layers) fn apply(
        &self,
        x: &Value,
        added: Option<&Value>,
        pass: &Pass,
        state: Option<&mut LayerState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        if let Some(packed) = &self.packed {
            return packed.apply(x, added, pass, state, residual);
        }
        let (query, made) = self.project(x, added, pass)?;
        let relative = self.relative_terms(x, pass)?;
        let Some(made) = made else {
            let shared = pass.shared_keys(&self.config)?;
            return self.attend_own(&query, shared, relative, pass, x, residual);
        };
        let (kept, keys) = match state {
            None => (made, pass.seq),
            Some(state) => {
                let [first, second] = made;
                let rows = |of: Value| rows(of, pass.batch, pass.seq);
                let heads = self.latent().map_or(self.config.n_kv_heads, |_| 1);
                let new = (&rows(first)?, &rows(second)?);
                let rows = state.as_rows()?;
                let (first, second) = rows.append(new, heads, self.config.window)?;
                let keys = first.dim(1)?;
                ([query.beside(&first)?, query.beside(&second)?], keys)
            }
        };
        let [key, value] = match self.latent() {
            None => kept,
            Some(latent) => latent.expanded(&self.config, kept, pass.context.train())?,
        };
        let attended = KeysAndValues { key, value, keys };
        pass.share_keys(&attended);
        self.attend_own(&query, attended, relative, pass, x, residual)
    }

    /// Computes attention to these keys and values. The last of them belong to the queries' positions.
    fn attend_own(
        &self,
        query: &Value,
        KeysAndValues { key, value, keys }: KeysAndValues,
        relative: Option<DistanceTerms>,
        pass: &Pass,
        x: &Value,
        residual: Option<&Value>,
    ) -> Result<Value> {
        let keep = pass.keep_of_last(keys)?;
        let all = pass.seen + pass.seq;
        let added = pass.added(&self.config)?.into_iter();
        let added = added.map(|bias| bias.last_keys(all, keys));
        let attended = Attended {
            key,
            value,
            keys: (KeySource::Input, keys),
            visible: Visible {
                keep: keep.as_ref().map(|keep| &keep.device),
                on_host: keep.as_ref().map(|keep| &keep.host),
                visibility: self.config.visibility,
                window: self.config.window,
                first_query: keys - pass.seq,
            },
            relative,
            added: added.collect::<Result<_>>()?,
            has_mask: pass.context.mask().additive().is_some() || self.config.chunk.is_some(),
        };
        self.attend(query, &attended, pass, x, residual)
    }

    /// Returns queries, and the pair that a cache keeps: keys and values, or the latents that these are computed
    /// from. The pair is `None` if another layer has it.
    fn project(
        &self,
        x: &Value,
        added: Option<&Value>,
        pass: &Pass,
    ) -> Result<(Value, Option<[Value; 2]>)> {
        let train = pass.context.train();
        let norms = self.norms.as_ref();
        let queries = |query| {
            let query = self.placed(query, norms.map(|norms| &norms.query[..]), pass)?;
            self.tempered(query, pass)
        };
        let [query, key, value] = match &self.projections {
            QueryKeyValue::Query(query) => {
                return Ok((queries(query.apply(x, None, train)?)?, None));
            }
            QueryKeyValue::Separate { query, key, value } => {
                let (q, kv) = (self.config.query_width(), self.config.key_width());
                let project = |linear: &Linear, columns: Range<usize>| {
                    let added = added.map(|of| of.columns(columns));
                    linear.apply(x, added.as_ref(), train)
                };
                [
                    project(query, 0..q)?,
                    project(key, q..q + kv)?,
                    project(value, q + kv..q + 2 * kv)?,
                ]
            }
            QueryKeyValue::QueryKey { query, key } => {
                let key = key.apply(x, None, train)?;
                [query.apply(x, None, train)?, key.clone(), key]
            }
            QueryKeyValue::Fused(fused) => {
                let (q, kv) = (self.config.query_width(), self.config.key_width());
                let all = fused.apply(x, None, train)?;
                [0..q, q..q + kv, q + kv..q + 2 * kv].map(|columns| all.columns(columns))
            }
            QueryKeyValue::Latent(latent) => {
                let (query, kept) = latent.project(&self.config, x, pass)?;
                return Ok((self.tempered(query, pass)?, Some(kept)));
            }
        };
        let key = self.placed(key, norms.map(|norms| &norms.key[..]), pass)?;
        let value = self.normal_values(self.prepared(value, None)?)?;
        Ok((queries(query)?, Some([key, value])))
    }

    /// Normalizes each head's values, if the layer has a value norm.
    pub(super) fn normal_values(&self, value: Value) -> Result<Value> {
        match self.value_norm(value.dtype(), &value.device())? {
            Some(norm) => normalized(&[norm], &value),
            None => Ok(value),
        }
    }

    /// Returns the norm of each head's value, if there is one.
    pub(crate) fn value_norm(&self, dtype: DType, device: &Device) -> Result<Option<Norm>> {
        let Some(eps) = self.config.value_norm else {
            return Ok(None);
        };
        let config = self.config.norm_of_values(eps);
        let ones = Tensor::ones(config.d_model, dtype, device)?;
        Norm::from_parts(ones, None, config).map(Some)
    }

    /// Normalizes projected queries or keys and rotates them by their positions.
    fn placed(&self, x: Value, norms: Option<&[Norm]>, pass: &Pass) -> Result<Value> {
        let is_after_rotation = |of: QueryKeyNorm| of.after_rotation;
        let (before, after) = match self.config.query_key_norm.is_some_and(is_after_rotation) {
            true => (None, norms),
            false => (norms, None),
        };
        let mut x = self.prepared(x, before)?;
        if let Position::Rotary(_) = self.config.position {
            let (dims, head_dim) = (x.dims().to_vec(), self.config.head_dim);
            let heads = vec![pass.batch, pass.seq, x.width() / head_dim, head_dim];
            x = rotated(&self.config, x.reshape(heads)?, pass)?.reshape(dims)?;
        }
        after.map_or(Ok(x.clone()), |norms| normalized(norms, &x))
    }

    /// Multiplies queries by the temperature of their positions.
    fn tempered(&self, query: Value, pass: &Pass) -> Result<Value> {
        let Some(temperature) = self.config.temperature else {
            return Ok(query);
        };
        let (dims, head_dim) = (query.dims().to_vec(), self.config.head_dim);
        let key = (temperature, head_dim / 2);
        let Some(tables) = pass.temperatures(key, query.sum_type(), &query.device())? else {
            return Ok(query);
        };
        let heads = vec![pass.batch, pass.seq, query.width() / head_dim, head_dim];
        let heads = query.reshape(heads)?;
        heads
            .rotate(&tables.cos, &tables.sin, RotaryPairing::Halves)?
            .reshape(dims)
    }
}

/// Rotates queries or keys `[batch, seq, heads, head_dim]` by their positions.
pub(super) fn rotated(config: &AttentionConfig, x: Value, pass: &Pass) -> Result<Value> {
    let Position::Rotary(rotary) = &config.position else {
        return Ok(x);
    };
    let tables = pass.rotary_tables(rotary, x.sum_type(), &x.device())?;
    x.rotate(&tables.cos, &tables.sin, rotary.pairing)
}
