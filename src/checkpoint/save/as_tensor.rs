//! The trait for values that [`Checkpoint::save`](crate::Checkpoint::save) accepts as parameters.

use candle_core::{Tensor, Var};

/// A [`Tensor`] or a [`Var`], owned or borrowed. Saving accepts all of these, so
/// [`Loader::parameters`](crate::Loader::parameters), [`Lora::merge`](crate::train::Lora::merge) and a `HashMap<String,
/// Tensor>` can be passed unchanged.
pub trait AsTensor {
    /// Returns the tensor.
    fn as_tensor(&self) -> &Tensor;
}

impl AsTensor for Tensor {
    fn as_tensor(&self) -> &Tensor {
        self
    }
}

impl AsTensor for Var {
    fn as_tensor(&self) -> &Tensor {
        self // by deref
    }
}

impl<T: AsTensor + ?Sized> AsTensor for &T {
    fn as_tensor(&self) -> &Tensor {
        (**self).as_tensor()
    }
}
