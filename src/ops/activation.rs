//! Element-wise activations.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::{
    composed,
    linear::selected_isa,
    storage::{Float, check_float, cotangent, gradient, output, slice, tensor_slice, with_float},
};
use crate::{Activation, cpu::activation as kernel};

const OP: &str = "activation";

/// Applies an activation to every element.
///
/// The formulas stand at [`Activation`]; where one has a kink, the gradient there is PyTorch's (0
/// for `relu` at 0). Equals `ACT2FN[name](x)` of transformers
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/activations.py>).
///
/// # Shapes
/// Any; the result has the shape of `x`.
///
/// # Errors
/// If `x` is not of a float type.
pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    check_float(OP, x)?;
    if activation == Activation::Identity {
        return Ok(x.clone());
    }
    if x.device().is_cpu() {
        x.contiguous()?.apply_op1(Activate(activation))
    } else {
        composed::activate(x, activation)
    }
}

struct Activate(Activation);

impl CustomOp1 for Activate {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        with_float!(OP, storage.dtype(), T => {
            let x = slice::<T>(OP, storage, layout)?;
            Ok(output(forward(self.0, x)?, layout))
        })
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let grad = cotangent(OP, grad)?;
        let (dy, dy_layout) = grad.storage_and_layout();
        let (x_storage, x_layout) = x.storage_and_layout();
        with_float!(OP, x.dtype(), T => {
            let dy = tensor_slice::<T>(OP, &dy, dy_layout)?;
            let dx = backward(self.0, tensor_slice(OP, &x_storage, x_layout)?, dy)?;
            gradient(dx, x).map(Some)
        })
    }
}

/// `kernel::forward` with the value of the activation.
fn forward<T: Float>(activation: Activation, x: &[T]) -> Result<Vec<T>> {
    let isa = selected_isa()?;
    let mut out = vec![T::ZERO; x.len()];
    let y = &mut out[..];
    match activation {
        Activation::Gelu => kernel::forward(isa, x, y, kernel::gelu),
        Activation::GeluTanh => kernel::forward(isa, x, y, kernel::gelu_tanh),
        Activation::QuickGelu => kernel::forward(isa, x, y, kernel::quick_gelu),
        Activation::ClippedGelu => kernel::forward(isa, x, y, kernel::clipped_gelu),
        Activation::Relu => kernel::forward(isa, x, y, kernel::relu),
        Activation::Relu2 => kernel::forward(isa, x, y, kernel::relu2),
        Activation::Relu6 => kernel::forward(isa, x, y, kernel::relu6),
        Activation::LeakyRelu => kernel::forward(isa, x, y, kernel::leaky_relu),
        Activation::Silu => kernel::forward(isa, x, y, kernel::silu),
        Activation::Mish => kernel::forward(isa, x, y, kernel::mish),
        Activation::HardSwish => kernel::forward(isa, x, y, kernel::hard_swish),
        Activation::Sigmoid => kernel::forward(isa, x, y, kernel::sigmoid),
        Activation::Tanh => kernel::forward(isa, x, y, kernel::tanh),
        Activation::Laplace => kernel::forward(isa, x, y, kernel::laplace),
        Activation::SqrtSoftplus => kernel::forward(isa, x, y, kernel::sqrt_softplus),
        Activation::Identity => kernel::forward(isa, x, y, kernel::identity),
    }
    Ok(out)
}

/// `kernel::backward` with the slope of the activation.
fn backward<T: Float>(activation: Activation, x: &[T], dy: &[T]) -> Result<Vec<T>> {
    let isa = selected_isa()?;
    let mut out = vec![T::ZERO; x.len()];
    let dx = &mut out[..];
    match activation {
        Activation::Gelu => kernel::backward(isa, x, dy, dx, kernel::gelu_slope),
        Activation::GeluTanh => kernel::backward(isa, x, dy, dx, kernel::gelu_tanh_slope),
        Activation::QuickGelu => kernel::backward(isa, x, dy, dx, kernel::quick_gelu_slope),
        Activation::ClippedGelu => kernel::backward(isa, x, dy, dx, kernel::clipped_gelu_slope),
        Activation::Relu => kernel::backward(isa, x, dy, dx, kernel::relu_slope),
        Activation::Relu2 => kernel::backward(isa, x, dy, dx, kernel::relu2_slope),
        Activation::Relu6 => kernel::backward(isa, x, dy, dx, kernel::relu6_slope),
        Activation::LeakyRelu => kernel::backward(isa, x, dy, dx, kernel::leaky_relu_slope),
        Activation::Silu => kernel::backward(isa, x, dy, dx, kernel::silu_slope),
        Activation::Mish => kernel::backward(isa, x, dy, dx, kernel::mish_slope),
        Activation::HardSwish => kernel::backward(isa, x, dy, dx, kernel::hard_swish_slope),
        Activation::Sigmoid => kernel::backward(isa, x, dy, dx, kernel::sigmoid_slope),
        Activation::Tanh => kernel::backward(isa, x, dy, dx, kernel::tanh_slope),
        Activation::Laplace => kernel::backward(isa, x, dy, dx, kernel::laplace_slope),
        Activation::SqrtSoftplus => kernel::backward(isa, x, dy, dx, kernel::sqrt_softplus_slope),
        Activation::Identity => kernel::backward(isa, x, dy, dx, kernel::identity_slope),
    }
    Ok(out)
}
