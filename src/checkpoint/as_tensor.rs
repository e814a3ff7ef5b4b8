//! What [`Checkpoint::save`](crate::Checkpoint::save) takes as a parameter's value.

use candle_core::{Tensor, Var};

/// A [`Tensor`] or a [`Var`], owned or borrowed: the values that saving accepts, so that
/// [`Loader::parameters`](crate::Loader::parameters), [`Lora::merge`](crate::train::Lora::merge) and a
/// `HashMap<String, Tensor>` can all be passed as they are.
pub trait AsTensor {
    /// The tensor itself.
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
