//! Attention of a sequence to itself.

use candle_core::{D, Result, Tensor};

use super::{Attention, QueryKeyValue, batch_and_seq, heads::Role};
use crate::{
    config::Position,
    layers::{Linear, kv_cache::LayerCache, mask::Marked, pass::Pass},
    ops::{self, Visible},
};

impl Attention {
    /// Self-attention in a pass, for positions after the cached ones.
    pub(in crate::layers) fn attend(
        &self,
        x: &Tensor,
        pass: &Pass,
        cache: Option<&mut LayerCache>,
    ) -> Result<Tensor> {
        let (batch, seq) = batch_and_seq(x)?;
        self.check_norms()?;
        let train = pass.context.train();
        let (query, key, value) = self.project(x, train)?;
        let fused = self.is_fused(x, pass.additive.as_ref(), train);
        if fused && self.mixes_projections() && cache.is_none() && x.rank() == 3 {
            let wide = |t: Tensor| t.to_dtype(ops::product_dtype(&t));
            let (query, key, value) = (wide(query)?, wide(key)?, wide(value)?);
            Marked::Sequence.check(pass.keep.as_ref(), batch, seq)?;
            let visible = self.visible(pass.keep.as_ref(), 0);
            let mixed = self.mix(&query, &key, &value, None, &visible, train)?;
            return self.merge(mixed, x, train);
        }
        let query = self.heads(&query, (batch, seq), Role::Query)?;
        let key = self.heads(&key, (batch, seq), Role::Key)?;
        let value = self.heads(&value, (batch, seq), Role::Value)?;
        let (query, key) = match &self.config.position {
            Position::Rotary(rotary) => {
                let tables =
                    pass.rotary_tables(rotary, (batch, seq), query.dtype(), query.device())?;
                let rotate = |t| ops::rotate(t, &tables.cos, &tables.sin, rotary.pairing);
                (rotate(&query)?, rotate(&key)?)
            }
            _ => (query, key),
        };
        let (key, value) = match cache {
            Some(cache) => cache.append(&key, &value, self.config.window)?,
            None => (key, value),
        };
        let keys = key.dim(2)?;
        // A window may have dropped the oldest keys.
        let keep = match &pass.keep {
            None => None,
            Some(keep) => {
                let all = pass.seen + seq;
                Marked::Sequence.check(Some(keep), batch, all)?;
                Some(keep.narrow(1, all - keys, keys)?.contiguous()?)
            }
        };
        let additive = match &pass.additive {
            Some(additive) => Some(last_keys(additive, pass.seen + seq, keys)?),
            None => None,
        };
        let visible = self.visible(keep.as_ref(), keys - seq);
        let mixed = self.mix(&query, &key, &value, additive.as_ref(), &visible, train)?;
        self.merge(mixed, x, train)
    }

    /// Query, key and value, each `[.., width]`.
    fn project(&self, x: &Tensor, train: bool) -> Result<(Tensor, Tensor, Tensor)> {
        match &self.projections {
            QueryKeyValue::Separate { query, key, value } => {
                let project = |linear: &Linear| linear.forward_t(x, train);
                Ok((project(query)?, project(key)?, project(value)?))
            }
            QueryKeyValue::Fused(fused) => {
                let (q, kv) = (self.config.query_width(), self.config.key_width());
                let all = fused.forward_t(x, train)?;
                let last = all.rank() - 1;
                Ok((
                    all.narrow(last, 0, q)?,
                    all.narrow(last, q, kv)?,
                    all.narrow(last, q + kv, kv)?,
                ))
            }
        }
    }

    /// Which keys the queries see, the first of which stands at position `first_query` of the keys.
    fn visible<'a>(&self, keep: Option<&'a Tensor>, first_query: usize) -> Visible<'a> {
        Visible {
            keep,
            visibility: self.config.visibility,
            window: self.config.window,
            first_query,
        }
    }

    /// Whether the projections enter the scores unchanged: not rotated, normalised or clipped.
    fn mixes_projections(&self) -> bool {
        let unmoved = !matches!(self.config.position, Position::Rotary(_));
        unmoved && self.norms.is_none() && self.config.clip.is_none()
    }
}

/// The last `keys` columns of what is added to the scores of all positions.
fn last_keys(additive: &Tensor, all: usize, keys: usize) -> Result<Tensor> {
    match additive.dims().last() {
        Some(&columns) if columns == all && keys < all => {
            additive.narrow(D::Minus1, all - keys, keys)
        }
        _ => Ok(additive.clone()),
    }
}
