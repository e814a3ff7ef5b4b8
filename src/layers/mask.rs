//! Attention masks: which keys are real, and what is added to the scores.

use candle_core::{DType, Tensor};

use crate::{Error, Result};

/// An attention mask: a key-padding mask, an additive mask, both, or neither.
///
/// Causal attention needs no mask: it is part of the attention's configuration ([`Visibility`](crate::Visibility)).
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct AttentionMask {
    keep: Option<Tensor>,     // [batch, keys] u8
    additive: Option<Tensor>, // broadcasts to [batch, n_heads, queries, keys]
}

impl AttentionMask {
    /// Masks nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// A key-padding mask as tokenizers return it: `[batch, seq]` of any dtype, 1 = a real token, 0 = padding.
    ///
    /// A query whose keys are all masked gives zeros, not NaN.
    ///
    /// # Errors
    /// If the rank is not 2 or a value is neither 0 nor 1.
    pub fn padding(mask: &Tensor) -> Result<Self> {
        if mask.rank() != 2 {
            return Err(Error::input(
                "attention_mask",
                format!("has shape {:?}, expected [batch, seq]", mask.dims()),
            ));
        }
        let values = mask.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        if let Some(at) = values.iter().position(|&v| v != 0.0 && v != 1.0) {
            let seq = mask.dims()[1];
            return Err(Error::input(
                "attention_mask",
                format!(
                    "holds {} at [{}, {}], expected 1 (keep) or 0 (drop)",
                    values[at],
                    at / seq,
                    at % seq
                ),
            ));
        }
        Ok(Self {
            keep: Some(mask.to_dtype(DType::U8)?.contiguous()?),
            additive: None,
        })
    }

    /// Also adds `mask` to the scores before the softmax; `-inf` hides a key. It must broadcast to
    /// `[batch, n_heads, queries, keys]`, and receives a gradient if it is a variable or depends on one.
    pub fn with_additive(mut self, mask: Tensor) -> Self {
        self.additive = Some(mask);
        self
    }

    /// The key-padding mask, if any: `[batch, keys]` of `u8`, 1 = keep.
    pub fn keep(&self) -> Option<&Tensor> {
        self.keep.as_ref()
    }

    /// The additive mask, if any.
    pub fn additive(&self) -> Option<&Tensor> {
        self.additive.as_ref()
    }

    /// Checks the key-padding mask against the scores' batch and number of keys.
    pub(crate) fn check(&self, batch: usize, keys: usize) -> Result<()> {
        match &self.keep {
            Some(keep) if keep.dims() != [batch, keys] => Err(Error::input(
                "attention_mask",
                format!(
                    "has shape {:?}, expected [batch, seq] = [{batch}, {keys}] of hidden_states",
                    keep.dims()
                ),
            )),
            _ => Ok(()),
        }
    }
}
