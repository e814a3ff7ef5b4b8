//! [`Activation`] as a candle `Module`.

use candle_core::{Module, Result, Tensor};

use crate::{config::Activation, ops};

impl Module for Activation {
    /// Applies the activation to every element. Any shape; differentiable.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::activate(x, *self)
    }
}
