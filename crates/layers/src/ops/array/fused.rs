//! Row-wise operations that candle provides as fused kernels.

use candle_core::Result;

use super::Array;

impl Array {
    /// Computes the softmax over the last dimension. No row may be all `-inf`.
    pub fn softmax(&self) -> Result<Self> {
        self.contiguous()?
            .elementwise("softmax_last_dim", candle_nn::ops::softmax_last_dim)
    }

    /// Computes LayerNorm over the last dimension in f32, for a mean near 0: candle computes the variance as the
    /// mean square minus the squared mean.
    pub fn layer_norm(&self, weight: &Self, bias: &Self, eps: f64) -> Result<Self> {
        let (weight, bias) = (weight.contiguous()?, bias.contiguous()?);
        self.contiguous()?.elementwise("layer_norm", |x| {
            candle_nn::ops::layer_norm(x, &weight.0, &bias.0, eps as f32)
        })
    }

    /// Computes RMSNorm over the last dimension in f32.
    pub fn rms_norm(&self, weight: &Self, eps: f64) -> Result<Self> {
        let weight = weight.contiguous()?;
        self.contiguous()?.elementwise("rms_norm", |x| {
            candle_nn::ops::rms_norm(x, &weight.0, eps as f32)
        })
    }

    /// Rotates the halves in `[batch, seq, heads, 2 · pairs]` against each other.
    pub fn rope_halves(&self, cos: &Self, sin: &Self) -> Result<Self> {
        let (cos, sin) = (cos.contiguous()?, sin.contiguous()?);
        self.contiguous()?.elementwise("rope_thd", |x| {
            candle_nn::rotary_emb::rope_thd(x, &cos.0, &sin.0)
        })
    }

    /// Rotates adjacent elements in `[batch, heads, seq, 2 · pairs]` against each other.
    pub fn rope_neighbors(&self, cos: &Self, sin: &Self) -> Result<Self> {
        let (cos, sin) = (cos.contiguous()?, sin.contiguous()?);
        self.contiguous()?.elementwise("rope_i", |x| {
            candle_nn::rotary_emb::rope_i(x, &cos.0, &sin.0)
        })
    }
}
