//! From queries, keys and values of all heads to the output.

use candle_core::{ModuleT, Result, Tensor, bail};

use super::Attention;
use crate::{
    config::Position,
    layers::{mask::check_additive, position::alibi_bias},
    ops::{self, Visible},
};

impl Attention {
    /// Whether scores, masked softmax and values can be one operation: on a CPU, with nothing else in between.
    pub(super) fn is_fused(&self, x: &Tensor, additive: Option<&Tensor>, train: bool) -> bool {
        let no_bias = additive.is_none() && !matches!(self.config.position, Position::Alibi(_));
        let no_dropout = !train || self.dropout.p() == 0.0;
        no_bias && no_dropout && self.config.soft_cap.is_none() && x.device().is_cpu()
    }

    /// `softmax(scale · q·kᵀ + additive)·v` of `[batch, heads, seq, head_dim]`, to `[batch, queries, n_heads · head_dim]`.
    pub(super) fn mix(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        additive: Option<&Tensor>,
        visible: &Visible,
        train: bool,
    ) -> Result<Tensor> {
        if self.is_fused(query, additive, train) {
            let mixing = ops::Mixing {
                n_heads: self.config.n_heads,
                n_kv_heads: self.config.n_kv_heads,
                scale: self.config.scale,
                visible,
            };
            return ops::mix(query, key, value, &mixing);
        }
        let (batch, n_heads, queries, head_dim) = query.dims4()?;
        let (_, n_kv_heads, keys, _) = key.dims4()?;
        // The query heads of one key/value head lie side by side: stack them as more rows.
        let rows = n_heads / n_kv_heads * queries;
        let stacked =
            ops::scaled(query, self.config.scale)?.reshape((batch, n_kv_heads, rows, head_dim))?;
        let mut scores = ops::batched_product(&stacked, &key.transpose(2, 3)?)?
            .reshape((batch, n_heads, queries, keys))?;
        if let Some(cap) = self.config.soft_cap {
            scores = scores.affine(1.0 / cap, 0.0)?.tanh()?.affine(cap, 0.0)?;
        }
        if let Position::Alibi(alibi) = &self.config.position {
            let bias = alibi_bias(alibi, n_heads, keys, visible.keep)?;
            let bias = bias.to_dtype(scores.dtype())?.to_device(scores.device())?;
            scores = scores.broadcast_add(&bias)?;
        }
        if let Some(additive) = additive {
            check_additive(additive)?;
            let lengths = scores.dims();
            if additive.broadcast_as(lengths).is_err() {
                bail!(
                    "additive mask: has shape {:?}, expected what broadcasts to [batch, n_heads, queries, keys] = {lengths:?}",
                    additive.dims()
                );
            }
            scores = scores.broadcast_add(&additive.to_dtype(scores.dtype())?)?;
        }
        let weights = ops::attention_softmax(&scores, visible)?;
        let weights = self.dropout.forward_t(&weights, train)?;
        let weights = weights.reshape((batch, n_kv_heads, rows, keys))?;
        ops::batched_product(&weights, value)?
            .reshape((batch, n_heads, queries, head_dim))?
            .transpose(1, 2)?
            .reshape((batch, queries, n_heads * head_dim))
    }

    /// `[batch, seq, n_heads · head_dim]` through the output projection, in the shape and type of `x`.
    pub(super) fn merge(&self, mixed: Tensor, x: &Tensor, train: bool) -> Result<Tensor> {
        let mixed = match x.rank() {
            3 => mixed,
            _ => {
                let mut dims = x.dims().to_vec();
                if let Some(last) = dims.last_mut() {
                    *last = self.config.query_width();
                }
                mixed.reshape(dims)?
            }
        };
        self.output.forward_t(&mixed.to_dtype(x.dtype())?, train)
    }
}
