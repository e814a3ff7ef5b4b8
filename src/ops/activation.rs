//! Element-wise activations as differentiable operations.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::{
    composed,
    linear::selected_isa,
    storage::{Float, check_float, cotangent, gradient, output, slice, tensor_slice, with_float},
};
use crate::{
    Activation,
    cpu::{
        Element, Real,
        activation::{self as kernel, Computed},
        gemm::Map,
        isa::Isa,
    },
};

const OP: &str = "activation";

/// Applies an activation to every element.
///
/// The formulas are documented at [`Activation`]; at a kink the gradient is PyTorch's (0 for `relu` at 0).
/// Equal to `ACT2FN[name](x)` of transformers
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
            let mut y = vec![T::ZERO; x.len()];
            forward(self.0, x, &mut y)?;
            Ok(output(y, layout))
        })
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let grad = cotangent(OP, grad)?;
        let (dy, dy_layout) = grad.storage_and_layout();
        let (x_storage, x_layout) = x.storage_and_layout();
        with_float!(OP, x.dtype(), T => {
            let dy = tensor_slice::<T>(OP, &dy, dy_layout)?;
            let mut dx = dy.to_vec();
            backward(self.0, tensor_slice(OP, &x_storage, x_layout)?, &mut dx)?;
            gradient(dx, x).map(Some)
        })
    }
}

/// Runs `$body` with `$Value` and `$Slope` the kernel types of the activation's value and slope.
macro_rules! with_functions {
    ($activation:expr, $Value:ident, $Slope:ident => $body:expr) => {
        with_functions! { $activation, $Value, $Slope, $body;
            Gelu: gelu GELU, gelu_slope GELU_SLOPE;
            GeluTanh: gelu_tanh GELU_TANH, gelu_tanh_slope GELU_TANH_SLOPE;
            QuickGelu: quick_gelu, quick_gelu_slope;
            ClippedGelu: clipped_gelu, clipped_gelu_slope;
            Relu: relu, relu_slope;
            Relu2: relu2, relu2_slope;
            Relu6: relu6, relu6_slope;
            LeakyRelu: leaky_relu, leaky_relu_slope;
            Silu: silu, silu_slope;
            Mish: mish, mish_slope;
            HardSwish: hard_swish, hard_swish_slope;
            Sigmoid: sigmoid, sigmoid_slope;
            Tanh: tanh, tanh_slope;
            Laplace: laplace, laplace_slope;
            SqrtSoftplus: sqrt_softplus, sqrt_softplus_slope;
            Identity: identity, identity_slope;
        }
    };
    ($activation:expr, $Value:ident, $Slope:ident, $body:expr;
     $($name:ident: $value:ident $($pieces:ident)?, $slope:ident $($slope_pieces:ident)?;)*) => {
        match $activation {
            $(Activation::$name => {
                function!($Value, $value $($pieces)?);
                function!($Slope, $slope $($slope_pieces)?);
                $body
            })*
        }
    };
}

/// Defines the type of a kernel function, with its piecewise polynomials if it has some.
macro_rules! function {
    ($Type:ident, $function:ident $($pieces:ident)?) => {
        #[allow(dead_code)] // a body may use only one of the two
        struct $Type;
        impl kernel::Function for $Type {
            #[inline(always)]
            fn at<R: Real>(x: R) -> R {
                kernel::$function(x)
            }
            $(fn pieces() -> Option<&'static kernel::Pieces> {
                Some(&kernel::$pieces)
            })?
        }
    };
}

/// Applies the activation to every element.
pub(super) fn forward<T: Float>(activation: Activation, x: &[T], y: &mut [T]) -> Result<()> {
    let isa = selected_isa()?;
    with_functions!(activation, Value, Slope => kernel::forward::<T, Value>(isa, x, y));
    Ok(())
}

/// Turns the gradient of the activation's value, in place, into that of `x`.
pub(super) fn backward<T: Float>(
    activation: Activation,
    x: &[T],
    gradient: &mut [T],
) -> Result<()> {
    let isa = selected_isa()?;
    with_functions!(activation, Value, Slope => kernel::backward::<T, Slope>(isa, x, gradient));
    Ok(())
}

/// The activation in place on slices, with the instructions of `isa`; `None` for the identity.
pub(crate) fn activation_map(activation: Activation, isa: Isa) -> Option<Box<Map<f32>>> {
    if activation == Activation::Identity {
        return None;
    }
    with_functions!(activation, Value, Slope => {
        Some(Box::new(move |x: &mut [f32]| f32::apply::<Value>(isa, x)))
    })
}
