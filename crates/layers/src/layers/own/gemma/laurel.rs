//! LAuReL, a learned augmented residual (Gemma 3n).

use std::f64::consts::FRAC_1_SQRT_2;

use candle_core::Result;

use crate::config::NormConfig;
use crate::layers::{Linear, Norm, ParameterSource, visit::parts};
use crate::ops::Value;

/// A learned augmented residual. It adds a low-rank projection of the attention's normalized input `n` to the
/// attention sublayer's output `y`: `(y + n + norm(up(down(n)))) / √2` (LAuReL, Menghani et al. 2024,
/// <https://arxiv.org/abs/2411.07501>), like transformers' `Gemma3nTextLaurelBlock`
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma3n/modeling_gemma3n.py>).
#[derive(Clone, Debug)]
pub(crate) struct Laurel {
    /// `[rank, d_model]`
    pub down: Linear,
    /// `[d_model, rank]`
    pub up: Linear,
    pub norm: Norm,
}

impl Laurel {
    /// Creates the layer with `down`, `up` and `norm` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new(rank: usize, norm: &NormConfig, vb: &ParameterSource) -> Result<Self> {
        let linear = |name: &str, d_in, d_out| Linear::unbiased([d_in, d_out], vb.pp(name));
        Ok(Self {
            down: linear("down", norm.d_model, rank)?,
            up: linear("up", rank, norm.d_model)?,
            norm: Norm::new(norm, vb.pp("norm"))?,
        })
    }

    /// Computes `(y + n + norm(up(down(n)))) / √2`.
    pub(in crate::layers) fn apply(&self, n: &Value, y: &Value, train: bool) -> Result<Value> {
        let low_rank = self.down.apply(n, None, train)?;
        let added = self.norm.apply(&self.up.apply(&low_rank, None, train)?)?;
        y.add(&n.add(&added)?)?.scale(FRAC_1_SQRT_2)
    }
}

parts!(Laurel: Self { down, up, .. } => [] [down, up]);
