//! The activations by name, each compiled separately.

use super::{
    compiled::{Function, WithFunction},
    decay_complement::*,
    pieces::{GELU, GELU_SLOPE, GELU_TANH, GELU_TANH_SLOPE, Pieces},
    smooth::*,
    straight::*,
    xielu::{Xielu, XieluSlope},
};
use crate::vectors::Real;

/// An element-wise activation function.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ActivationFunction {
    /// `x/2 · (1 + erf(x/√2))`.
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    GeluTanh,
    /// `x σ(1.702 x)`.
    QuickGelu,
    /// [`Self::Gelu`] clipped to `[-10, 10]`.
    ClippedGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    Relu2,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x` if positive, else `0.01 x`.
    LeakyRelu,
    /// `x σ(x)`.
    Silu,
    /// `x tanh(ln(1 + exp(x)))`.
    Mish,
    /// `x · min(max(x + 3, 0), 6) / 6`.
    HardSwish,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `(1 + erf((x - 0.707107) / (0.282095 √2))) / 2`.
    Laplace,
    /// `ln(1 + exp(x))`.
    Softplus,
    /// `√ln(1 + exp(x))`.
    SqrtSoftplus,
    /// `√(1 - exp(-2x))` for x from 0 on.
    DecayComplement,
    /// `x`.
    Identity,
    /// xIELU with these parameters.
    Xielu(Xielu),
}

macro_rules! functions {
    ($($name:ident: $value:ident $($pieces:ident)?, $slope:ident $($slope_pieces:ident)?;)*) => {
        impl ActivationFunction {
            /// Calls `work` with the activation.
            pub(crate) fn with_value(self, work: impl WithFunction) {
                match self {
                    $(Self::$name => {
                        function!($value $($pieces)?);
                        work.with(Chosen)
                    })*
                    Self::Xielu(xielu) => work.with(xielu),
                }
            }

            /// Calls `work` with the activation's slope.
            pub(crate) fn with_slope(self, work: impl WithFunction) {
                match self {
                    $(Self::$name => {
                        function!($slope $($slope_pieces)?);
                        work.with(Chosen)
                    })*
                    Self::Xielu(xielu) => work.with(XieluSlope(xielu)),
                }
            }
        }
    };
}

/// Defines a function's type, with its piecewise polynomials if any.
macro_rules! function {
    ($function:ident $($pieces:ident)?) => {
        #[derive(Clone, Copy)]
        struct Chosen;

        impl Function for Chosen {
            #[inline(always)]
            fn at<R: Real>(self, x: R) -> R {
                $function(x)
            }

            $(fn pieces() -> Option<&'static Pieces> {
                Some(&$pieces)
            })?
        }
    };
}

functions! {
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
    Softplus: softplus, softplus_slope;
    SqrtSoftplus: sqrt_softplus, sqrt_softplus_slope;
    DecayComplement: decay_complement, decay_complement_slope;
    Identity: identity, identity_slope;
}
