//! What follows the pooling: the modules of sentence-transformers that map a vector to a vector.

use candle_core::{DType, Module, Result, Tensor};

use crate::config::Activation;
use crate::layers::{Linear, Norm};
use crate::ops;

/// The least length by which a vector is divided, as in PyTorch's `normalize`.
const LEAST_LENGTH: f64 = 1e-12;

/// A map of vectors `[n, d]` to vectors.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// A linear layer and an activation, with the input added if there is a residual.
    Dense {
        linear: Linear,
        activation: Activation,
        residual: Residual,
    },
    /// A norm.
    LayerNorm(Norm),
    /// Divides a vector by its length.
    Normalize,
}

/// What a dense layer adds to its output.
#[derive(Clone, Debug)]
pub(super) enum Residual {
    None,
    /// Its input.
    Input,
    /// Another linear layer's output.
    Linear(Linear),
}

impl Stage {
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense {
                linear,
                activation,
                residual,
            } => {
                let y = ops::activate(&linear.forward(x)?, *activation)?;
                match residual {
                    Residual::None => Ok(y),
                    Residual::Input => y + x,
                    Residual::Linear(linear) => y + linear.forward(x)?,
                }
            }
            Self::LayerNorm(norm) => norm.forward(x),
            Self::Normalize => {
                let exact = x.to_dtype(DType::F64)?;
                let lengths = exact.sqr()?.sum_keepdim(1)?.sqrt()?;
                let lengths = lengths.clamp(LEAST_LENGTH, f64::MAX)?;
                exact.broadcast_div(&lengths)?.to_dtype(x.dtype())
            }
        }
    }

    /// The width of its output for an input of this width.
    pub fn width(&self, d_in: usize) -> Result<usize> {
        match self {
            Self::Dense { linear, .. } => Ok(linear.shape().0),
            Self::LayerNorm(_) | Self::Normalize => Ok(d_in),
        }
    }
}
