//! Additive masks and relative position biases, prepared for packed attention.

use candle_core::{DType, Result};

use super::with_elements;
use crate::layers::check_additive;
use crate::ops::BiasTensor;
use candle_blocks_kernels::attention::Bias;

/// A bias on attention scores, with its elements in f32.
#[doc(hidden)]
pub struct Additive {
    bias: BiasTensor,
    elements: Vec<f32>,
}

impl Additive {
    /// # Errors
    /// If the bias has no float dtype, tracks gradients, or is not on the CPU.
    pub fn new(bias: BiasTensor) -> Result<Self> {
        check_additive(&bias.tensor)?;
        let tensor = bias.tensor.to_dtype(DType::F32)?;
        let elements = with_elements("additive mask", &tensor, |elements| Ok(elements.to_vec()))?;
        Ok(Self { bias, elements })
    }

    /// # Errors
    /// If the bias does not fit scores with these lengths, `[batch, n_heads, queries, keys]`.
    pub fn checked(&self, lengths: [usize; 4]) -> Result<Bias<'_>> {
        self.bias.check(lengths)?;
        let [_, _, queries, keys] = lengths;
        Ok(Bias {
            data: &self.elements,
            layout: self.bias.layout(queries, keys),
        })
    }
}
