//! Attention of a sequence to itself.

use candle_core::{D, Result, Tensor};

use super::query_key_norm::normalized;
use super::scores::{Attended, rows};
use super::{Attention, QueryKeyValue};
use crate::layers::{kv_cache::LayerCache, mask::Marked, pass::Pass};
use crate::ops::{Value, Visible};
use crate::{
    config::{Position, QueryKeyNorm, RotaryPairing},
    layers::{Linear, Norm, RotaryTables},
};

impl Attention {
    /// Self-attention in a pass, for positions after the cached ones; the output is added to `residual`.
    pub(in crate::layers) fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        cache: Option<&mut LayerCache>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        let train = pass.context.train();
        let [query, key, value] = self.project(x, train)?;
        let norms = self.norms.as_ref();
        let query = self.placed(query, norms.map(|norms| norms.query_spans()), pass)?;
        let query = self.tempered(query, pass)?;
        let key = self.placed(key, norms.map(|norms| norms.key_spans()), pass)?;
        let value = self.prepared(value, None)?;
        let (key, value, keys) = match cache {
            None => (key, value, pass.seq),
            Some(cache) => {
                let rows = |of: Value| rows(of, pass.batch, pass.seq);
                let (key, value) = cache.append(
                    (&rows(key)?, &rows(value)?),
                    self.config.n_kv_heads,
                    self.config.window,
                )?;
                let keys = key.dim(1)?;
                (query.beside(&key)?, query.beside(&value)?, keys)
            }
        };
        let keep = pass.keep_of_last(keys)?;
        let all = pass.seen + pass.seq;
        let additive = pass.additive();
        let attended = Attended {
            key,
            value,
            keys: (Marked::Sequence, keys),
            visible: Visible {
                keep: keep.as_ref().map(|keep| &keep.device),
                on_host: keep.as_ref().map(|keep| &keep.host),
                visibility: self.config.visibility,
                window: self.config.window,
                first_query: keys - pass.seq,
            },
            additive: additive
                .map(|added| last_keys(&added, all, keys))
                .transpose()?,
            has_mask: pass.context.mask().additive().is_some(),
        };
        self.attend(&query, &attended, pass, (x, residual))
    }

    /// Query, key and value, each `[.., width]`.
    fn project(&self, x: &Value, train: bool) -> Result<[Value; 3]> {
        match &self.projections {
            QueryKeyValue::Separate { query, key, value } => {
                let project = |linear: &Linear| linear.apply(x, None, train);
                Ok([project(query)?, project(key)?, project(value)?])
            }
            QueryKeyValue::Fused(fused) => {
                let (q, kv) = (self.config.query_width(), self.config.key_width());
                let all = fused.apply(x, None, train)?;
                Ok([
                    all.columns(0..q),
                    all.columns(q..q + kv),
                    all.columns(q + kv..q + 2 * kv),
                ])
            }
        }
    }

    /// Projected queries or keys, normalized and turned by their positions.
    fn placed(&self, x: Value, norms: Option<&[Norm]>, pass: &Pass) -> Result<Value> {
        let of_turned = |of: QueryKeyNorm| of.after_rotation;
        let (before, after) = match self.config.query_key_norm.is_some_and(of_turned) {
            true => (None, norms),
            false => (norms, None),
        };
        let x = self.turned(self.prepared(x, before)?, pass)?;
        after.map_or(Ok(x.clone()), |norms| normalized(norms, &x))
    }

    /// Queries or keys turned by their positions.
    fn turned(&self, x: Value, pass: &Pass) -> Result<Value> {
        let Position::Rotary(rotary) = &self.config.position else {
            return Ok(x);
        };
        let tables = pass.rotary_tables(rotary, x.sum_type(), &x.device())?;
        self.rotated(&x, &tables, rotary.pairing, pass)
    }

    /// Queries multiplied by the temperature of their positions.
    fn tempered(&self, query: Value, pass: &Pass) -> Result<Value> {
        let Some(temperature) = self.config.temperature else {
            return Ok(query);
        };
        let key = (temperature, self.config.head_dim / 2);
        match pass.temperatures(key, query.sum_type(), &query.device())? {
            Some(tables) => self.rotated(&query, &tables, RotaryPairing::Halves, pass),
            None => Ok(query),
        }
    }

    fn rotated(
        &self,
        x: &Value,
        tables: &RotaryTables,
        pairing: RotaryPairing,
        pass: &Pass,
    ) -> Result<Value> {
        let head_dim = self.config.head_dim;
        let (dims, heads) = (x.dims().to_vec(), x.width() / head_dim);
        x.reshape(vec![pass.batch, pass.seq, heads, head_dim])?
            .rotate(&tables.cos, &tables.sin, pairing)?
            .reshape(dims)
    }
}

/// The last `keys` columns of what is added to the scores of all positions: a window may have dropped the oldest keys.
fn last_keys(additive: &Tensor, all: usize, keys: usize) -> Result<Tensor> {
    match additive.dims().last() {
        Some(&columns) if columns == all && keys < all => {
            additive.narrow(D::Minus1, all - keys, keys)
        }
        _ => Ok(additive.clone()),
    }
}
