//! Softmax over the last dimension, and its slope.

use candle_core::{DType, Result};

use super::{Array, Composed, Taped};
use crate::ops::softmax::SoftmaxInput;

impl Taped<Composed> {
    pub(in crate::ops) fn softmax(&self, scores: SoftmaxInput) -> Result<Self> {
        let (slot, dtype) = (self.slot.clone(), self.dtype());
        let y = softmax(&self.view()?.widened()?, scores)?;
        let kept = y.clone();
        Ok(
            self.mapped(y.to_dtype(dtype)?, &[slot.place], move |pass, dy| {
                pass.add(&slot, slope(&kept, &dy.widened()?)?.to_dtype(dtype)?)
            }),
        )
    }
}

impl Taped<Composed> {
    pub(in crate::ops) fn shares(&self, epsilon: f64) -> Result<Self> {
        let (slot, dtype) = (self.slot.clone(), self.dtype());
        let x = self.view()?.widened()?;
        let total = x.sum(x.dims().len() - 1)?.affine(1.0, epsilon)?;
        let y = x.div(&total)?;
        let kept = y.clone();
        Ok(
            self.mapped(y.to_dtype(dtype)?, &[slot.place], move |pass, dy| {
                let dy = dy.widened()?;
                let along = kept.mul(&dy)?.sum(kept.dims().len() - 1)?;
                pass.add(&slot, dy.sub(&along)?.div(&total)?.to_dtype(dtype)?)
            }),
        )
    }
}

/// Computes the softmax over the last dimension. A row with only `-inf` gives zeros.
pub(super) fn softmax(x: &Array, scores: SoftmaxInput) -> Result<Array> {
    if x.is_empty() {
        return Ok(x.clone()); // candle has no maximum over no elements
    }
    if scores == SoftmaxInput::Finite && x.dtype() != DType::F64 {
        return x.softmax();
    }
    let max = x.max()?;
    let lowest = max.full(f64::NEG_INFINITY)?;
    let zeros = max.zeros(max.dims())?;
    let e = x.sub(&max.eq(&lowest)?.select(&zeros, &max)?)?.exp()?;
    let total = e.sum(e.dims().len() - 1)?;
    e.div(&total.eq(&zeros)?.select(&total.full(1.0)?, &total)?)
}

/// Computes `y · (dy - Σ y · dy)`.
pub(super) fn slope(y: &Array, dy: &Array) -> Result<Array> {
    if y.is_empty() {
        return Ok(y.clone());
    }
    let along = y.mul(dy)?.sum(y.dims().len() - 1)?;
    y.mul(&dy.sub(&along)?)
}
