//! Additive masks and relative position biases, prepared for packed attention.

use candle_core::{DType, Result, Tensor, bail};

use super::with_elements;
use crate::layers::check_additive;
use crate::ops::{broadcast_strides, check_broadcast, four};
use candle_blocks_kernels::attention::Bias;

/// Values to add to the scores, broadcast to `[batch, n_heads, queries, keys]`.
pub(crate) struct Additive {
    elements: Vec<f32>,
    dims: [usize; 4],
    strides: [usize; 4],
}

impl Additive {
    /// # Errors
    /// If the mask has more than four dimensions, no float dtype, tracks gradients, or is not on the CPU.
    pub fn new(mask: &Tensor) -> Result<Self> {
        check_additive(mask)?;
        let Some(dims) = four(mask.dims()) else {
            let found = mask.dims();
            bail!("additive mask: has shape {found:?}, expected [batch, n_heads, queries, keys]");
        };
        let elements = with_elements("additive mask", &mask.to_dtype(DType::F32)?, |elements| {
            Ok(elements.to_vec())
        })?;
        Ok(Self {
            elements,
            dims,
            strides: broadcast_strides(dims),
        })
    }

    /// # Errors
    /// If the shape does not broadcast to these lengths.
    pub fn checked(&self, lengths: [usize; 4]) -> Result<Bias<'_>> {
        check_broadcast(&self.dims, lengths)?;
        Ok(Bias {
            data: &self.elements,
            strides: self.strides,
        })
    }
}
