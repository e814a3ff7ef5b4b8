//! Piecewise linear activations, and products with such functions, each with its slope. At a kink the slope is
//! PyTorch's.

use crate::vectors::{Real, inlined};

inlined! {
    /// `max(x, 0)`. NaN stays NaN.
    pub fn relu<R: Real>(x: R) -> R { x.at_least(R::ZERO) }

    /// [`relu`]'s slope, 0 at 0.
    pub fn relu_slope<R: Real>(x: R) -> R { if x <= R::ZERO { R::ZERO } else { R::of(1.0) } }

    /// `max(x, 0)²`.
    pub fn relu2<R: Real>(x: R) -> R {
        let positive = relu(x);
        positive * positive
    }

    /// [`relu2`]'s slope.
    pub fn relu2_slope<R: Real>(x: R) -> R { R::of(2.0) * relu(x) }

    /// `min(max(x, 0), 6)`.
    pub fn relu6<R: Real>(x: R) -> R { relu(x).at_most(R::of(6.0)) }

    /// [`relu6`]'s slope, 0 at both kinks.
    pub fn relu6_slope<R: Real>(x: R) -> R {
        if x >= R::of(6.0) { R::ZERO } else { relu_slope(x) }
    }

    /// `x` if positive, else `0.01 x`.
    pub fn leaky_relu<R: Real>(x: R) -> R { x * leaky_relu_slope(x) }

    /// [`leaky_relu`]'s slope, 0.01 at 0.
    pub fn leaky_relu_slope<R: Real>(x: R) -> R {
        if x > R::ZERO { R::of(1.0) } else { R::of(0.01) }
    }

    /// `x · min(max(x + 3, 0), 6) / 6`.
    pub fn hard_swish<R: Real>(x: R) -> R { x * relu6(x + R::of(3.0)) / R::of(6.0) }

    /// [`hard_swish`]'s slope, 0 at -3 and 1 at 3.
    pub fn hard_swish_slope<R: Real>(x: R) -> R {
        let three = R::of(3.0);
        let middle = x / three + R::of(0.5);
        let right = if x >= three { R::of(1.0) } else { middle };
        if x <= -three { R::ZERO } else { right }
    }

    /// `x`.
    pub fn identity<R: Real>(x: R) -> R { x }

    /// [`identity`]'s slope.
    pub fn identity_slope<R: Real>(_: R) -> R { R::of(1.0) }
}
