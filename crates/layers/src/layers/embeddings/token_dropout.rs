//! Factors on embedding rows: ESM's token dropout, and zeros for padding.

use candle_core::{Device, Result, Tensor};

use crate::config::TokenDropout;
use crate::ops;

use super::input::{Tokens, integers};

/// Sets rows with the mask token to 0, and scales the other rows by the share of mask tokens: `(1 - usual) / (1 -
/// share)`.
pub(super) fn in_place_of_hidden(
    x: &Tensor,
    dropout: &TokenDropout,
    ids: &[i64],
    tokens: &Tokens,
) -> Result<Tensor> {
    let (batch, seq, _) = x.dims3()?;
    let kept = match tokens.mask {
        Some(mask) => integers("attention_mask", mask, (batch, seq))?,
        None => vec![1; batch * seq],
    };
    let is_hidden = |id: &i64| *id == i64::from(dropout.token);
    let rows = ids
        .chunks_exact(seq.max(1))
        .zip(kept.chunks_exact(seq.max(1)));
    scale_rows(
        x,
        rows.flat_map(|(ids, kept)| {
            let n_hidden = ids.iter().filter(|id| is_hidden(id)).count() as f64;
            let share = n_hidden / kept.iter().sum::<i64>().max(1) as f64;
            let others = (1.0 - dropout.usual) / (1.0 - share);
            ids.iter()
                .map(move |id| if is_hidden(id) { 0.0 } else { others })
        }),
    )
}

/// Multiplies each row of `x` `[batch, seq, width]` by its factor, in f32 if `x` is narrower.
pub(super) fn scale_rows(x: &Tensor, factors: impl Iterator<Item = f64>) -> Result<Tensor> {
    let (batch, seq, _) = x.dims3()?;
    let wide = ops::wide(x.dtype());
    let factors = Tensor::from_vec(factors.collect::<Vec<_>>(), (batch, seq, 1), &Device::Cpu)?;
    let factors = factors.to_dtype(wide)?.to_device(x.device())?;
    x.to_dtype(wide)?
        .broadcast_mul(&factors)?
        .to_dtype(x.dtype())
}
