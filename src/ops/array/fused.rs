//! Operations of rows that candle has fused.

use candle_core::Result;

use super::Array;

impl Array {
    /// Softmax over the last dimension, of which no row is all `-inf`.
    pub fn softmax(&self) -> Result<Self> {
        self.contiguous()?
            .elementwise("softmax_last_dim", candle_nn::ops::softmax_last_dim)
    }

    /// LayerNorm over the last dimension of f32 whose mean is nearly 0: candle takes the variance for the mean of
    /// squares less the square of the mean.
    pub fn layer_norm(&self, weight: &Self, bias: &Self, eps: f64) -> Result<Self> {
        let (weight, bias) = (weight.contiguous()?, bias.contiguous()?);
        self.contiguous()?.elementwise("layer_norm", |x| {
            candle_nn::ops::layer_norm(x, &weight.0, &bias.0, eps as f32)
        })
    }

    /// RMSNorm over the last dimension of f32.
    pub fn rms_norm(&self, weight: &Self, eps: f64) -> Result<Self> {
        let weight = weight.contiguous()?;
        self.contiguous()?.elementwise("rms_norm", |x| {
            candle_nn::ops::rms_norm(x, &weight.0, eps as f32)
        })
    }

    /// Rotates the halves of `[batch, seq, heads, 2 · pairs]` against each other.
    pub fn rope_halves(&self, cos: &Self, sin: &Self) -> Result<Self> {
        let (cos, sin) = (cos.contiguous()?, sin.contiguous()?);
        self.contiguous()?.elementwise("rope_thd", |x| {
            candle_nn::rotary_emb::rope_thd(x, &cos.0, &sin.0)
        })
    }

    /// Rotates neighbors of `[batch, heads, seq, 2 · pairs]` against each other.
    pub fn rope_neighbors(&self, cos: &Self, sin: &Self) -> Result<Self> {
        let (cos, sin) = (cos.contiguous()?, sin.contiguous()?);
        self.contiguous()?.elementwise("rope_i", |x| {
            candle_nn::rotary_emb::rope_i(x, &cos.0, &sin.0)
        })
    }
}
