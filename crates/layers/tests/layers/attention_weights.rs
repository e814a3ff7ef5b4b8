//! Attention weights, measured as attention with identity values and scores added to zeros.

use candle_blocks::{
    Attention, AttentionConfig, AttentionMask, ForwardContext, Visibility,
    candle_core::{D, Result, Tensor},
    config::AttentionBias,
};

use crate::tensors::builder;

/// The keys that are visible.
pub struct Seen<'a> {
    pub keep: Option<&'a Tensor>,
    pub visibility: Visibility,
    pub window: Option<usize>,
}

/// Returns the weights `[batch, n_heads, queries, keys]` for such scores; queries are at the keys' last positions.
pub fn attention_weights(scores: &Tensor, seen: &Seen) -> Result<Tensor> {
    let (batch, n_heads, queries, keys) = scores.dims4()?;
    let (dtype, device) = (scores.dtype(), scores.device());
    let width = n_heads * keys;
    let identity = Tensor::eye(keys, dtype, device)?;
    let nothing = Tensor::zeros((width, width), dtype, device)?;
    // The input's first columns, once for each head.
    let heads =
        Tensor::cat(&vec![&identity; n_heads], 0)?.pad_with_zeros(D::Minus1, 0, width - keys)?;
    let config = AttentionConfig::with_head_dim(width, n_heads, keys)
        .with_bias(AttentionBias::NONE)
        .with_visibility(seen.visibility)
        .with_window(seen.window);
    let output = Tensor::eye(width, dtype, device)?;
    let parameters = builder([
        ("query.weight", &nothing),
        ("key.weight", &nothing),
        ("value.weight", &heads),
        ("output.weight", &output),
    ]);
    let attention = Attention::new(&config, parameters)?;
    let mask = match seen.keep {
        Some(keep) => AttentionMask::padding(keep)?,
        None => AttentionMask::none(),
    };
    let mask = mask.with_additive(scores.pad_with_zeros(2, keys - queries, 0)?);
    let x = identity
        .pad_with_zeros(D::Minus1, 0, width - keys)?
        .unsqueeze(0)?;
    let x = x.repeat((batch, 1, 1))?;
    let y = attention.forward_with(&x, &ForwardContext::evaluation().with_mask(mask))?;
    y.reshape((batch, keys, n_heads, keys))?
        .transpose(1, 2)?
        .narrow(2, keys - queries, queries)
}
