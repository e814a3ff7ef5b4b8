//! A product with a constant.

use candle_core::{Result, Tensor};

/// `factor · x`.
///
/// candle's `affine` takes a factor of 0 for a cut in the graph, and what is before it gets no gradient. Here it gets
/// zeros, as in PyTorch.
pub fn scaled(x: &Tensor, factor: f64) -> Result<Tensor> {
    if factor == 0.0 {
        return x.broadcast_mul(&Tensor::zeros((), x.dtype(), x.device())?);
    }
    x.affine(factor, 0.0)
}
