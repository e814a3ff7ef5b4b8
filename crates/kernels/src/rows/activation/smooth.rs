//! Activations without kinks, each with its slope.
//!
//! If a formula cancels and an equivalent one does not, the latter is used: `x/2 · (1 + tanh u)` is computed as `x ·
//! σ(2u)`, and `tanh(softplus x)` as a ratio between positive sums.

use crate::vectors::{Real, inlined};

inlined! {
    /// `x/2 · (1 + erf(x/√2))`.
    pub fn gelu<R: Real>(x: R) -> R { x * gelu_gate(x) }

    /// The factor that [`gelu`] multiplies x by: `Φ(x) = (1 + erf(x/√2)) / 2`. It cancels on the left like
    /// PyTorch's, with an error near one unit in the last place at 1, not at the result.
    pub fn gelu_gate<R: Real>(x: R) -> R {
        R::of(0.5) * (R::of(1.0) + (x * R::of(std::f64::consts::FRAC_1_SQRT_2)).erf())
    }

    /// [`gelu`]'s slope: `Φ(x) + x φ(x)`.
    pub fn gelu_slope<R: Real>(x: R) -> R {
        let density = (x * x * R::of(-0.5)).exp() * R::of(ONE_OVER_SQRT_TAU);
        gelu_gate(x) + x * density
    }

    /// [`gelu`] clipped to `[-10, 10]`; only the upper limit is ever reached.
    pub fn clipped_gelu<R: Real>(x: R) -> R { gelu(x).at_most(R::of(10.0)) }

    /// [`clipped_gelu`]'s slope, 0 from the limit on.
    pub fn clipped_gelu_slope<R: Real>(x: R) -> R {
        if gelu(x) >= R::of(10.0) { R::ZERO } else { gelu_slope(x) }
    }

    /// `x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    pub fn gelu_tanh<R: Real>(x: R) -> R { x * gelu_tanh_gate(x) }

    /// The factor that [`gelu_tanh`] multiplies x by: `σ(2 √(2/π) (x + 0.044715 x³))`.
    pub fn gelu_tanh_gate<R: Real>(x: R) -> R {
        sigmoid(R::of(2.0 * SQRT_2_OVER_PI) * (x + R::of(CUBIC) * x * x * x))
    }

    /// [`gelu_tanh`]'s slope.
    pub fn gelu_tanh_slope<R: Real>(x: R) -> R {
        // From 20 on the slope is 0 or 1, and further out its factors would overflow.
        let x = x.at_most(R::of(20.0)).at_least(R::of(-20.0));
        let square = x * x;
        let twice_inner = R::of(2.0 * SQRT_2_OVER_PI) * (x + R::of(CUBIC) * square * x);
        let inner_slope = R::of(2.0 * SQRT_2_OVER_PI) * (R::of(1.0) + R::of(3.0 * CUBIC) * square);
        let (sigmoid, complement) = sigmoid_and_complement(twice_inner);
        sigmoid + x * sigmoid * complement * inner_slope
    }

    /// `x σ(1.702 x)`.
    pub fn quick_gelu<R: Real>(x: R) -> R { x * sigmoid(R::of(1.702) * x) }

    /// [`quick_gelu`]'s slope.
    pub fn quick_gelu_slope<R: Real>(x: R) -> R {
        let scaled = R::of(1.702) * x;
        let (sigmoid, complement) = sigmoid_and_complement(scaled);
        sigmoid * (R::of(1.0) + scaled * complement)
    }

    /// `x σ(x)`.
    pub fn silu<R: Real>(x: R) -> R { x * sigmoid(x) }

    /// [`silu`]'s slope.
    pub fn silu_slope<R: Real>(x: R) -> R {
        let (sigmoid, complement) = sigmoid_and_complement(x);
        sigmoid * (R::of(1.0) + x * complement)
    }

    /// `1 / (1 + exp(-x))`.
    pub fn sigmoid<R: Real>(x: R) -> R { sigmoid_and_complement(x).0 }

    /// [`sigmoid`]'s slope.
    pub fn sigmoid_slope<R: Real>(x: R) -> R {
        let (sigmoid, complement) = sigmoid_and_complement(x);
        sigmoid * complement
    }

    /// `tanh(x)`.
    pub fn tanh<R: Real>(x: R) -> R { x.tanh() }

    /// [`tanh`]'s slope: `4 σ(2x) σ(-2x)`, which keeps its relative precision for large x, unlike `1 - tanh²`.
    pub fn tanh_slope<R: Real>(x: R) -> R { R::of(4.0) * sigmoid_slope(x + x) }

    /// `x tanh(ln(1 + exp(x)))`.
    pub fn mish<R: Real>(x: R) -> R {
        let (ratio, _) = tanh_of_softplus(x);
        x * ratio
    }

    /// [`mish`]'s slope.
    pub fn mish_slope<R: Real>(x: R) -> R {
        let (ratio, slope) = tanh_of_softplus(x);
        ratio + x.at_most(R::of(MISH_LINEAR_FROM)) * slope
    }
}

/// `√softplus(x)`.
pub fn sqrt_softplus<R: Real>(x: R) -> R {
    if x < R::of(SOFTPLUS_EXPONENTIAL_TO) {
        // `exp(x)` would underflow long before its root does.
        (R::of(0.5) * x).exp()
    } else {
        softplus(x).sqrt()
    }
}

/// [`sqrt_softplus`]' slope.
pub fn sqrt_softplus_slope<R: Real>(x: R) -> R {
    let root = sqrt_softplus(x);
    if x < R::of(SOFTPLUS_EXPONENTIAL_TO) {
        return R::of(0.5) * root;
    }
    softplus_slope(x) / (root + root)
}

inlined! {
    /// `(1 + erf((x - 0.707107) / (0.282095 √2))) / 2`.
    pub fn laplace<R: Real>(x: R) -> R { R::of(0.5) * (R::of(1.0) + laplace_argument(x).erf()) }

    /// [`laplace`]'s slope.
    pub fn laplace_slope<R: Real>(x: R) -> R {
        let z = laplace_argument(x);
        (-(z * z)).exp() * R::of(0.5 * std::f64::consts::FRAC_2_SQRT_PI / LAPLACE_WIDTH)
    }
}

const SQRT_2_OVER_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
const ONE_OVER_SQRT_TAU: f64 = 0.5 * SQRT_2_OVER_PI;
const CUBIC: f64 = 0.044715;

/// The center in `laplace`: six digits as in transformers, not 1/√2.
#[allow(clippy::approx_constant)]
pub const LAPLACE_CENTER: f64 = 0.707107;
/// The width in `laplace` times √2.
pub const LAPLACE_WIDTH: f64 = 0.282095 * std::f64::consts::SQRT_2;

/// The point from which PyTorch's softplus is `x` itself, in f64 too.
const SOFTPLUS_LINEAR_FROM: f64 = 20.0;

/// The point up to which softplus is `exp(x)` to the last bit in f64.
const SOFTPLUS_EXPONENTIAL_TO: f64 = -40.0;

/// The point from which mish is `x` to the last bit in f64, while `exp` squared still fits into f32.
const MISH_LINEAR_FROM: f64 = 40.0;

/// Returns `σ(x)` and `1 - σ(x) = σ(-x)`, both with full relative precision.
#[inline(always)]
fn sigmoid_and_complement<R: Real>(x: R) -> (R, R) {
    let small = (-x.abs()).exp();
    let near_one = R::of(1.0) / (R::of(1.0) + small);
    let near_zero = small * near_one;
    let positive = x > R::ZERO;
    (
        if positive { near_one } else { near_zero },
        if positive { near_zero } else { near_one },
    )
}

/// Returns `tanh(softplus(x)) = n / (n + 2)` with `n = e²ˣ + 2eˣ`, and its slope.
#[inline(always)]
fn tanh_of_softplus<R: Real>(x: R) -> (R, R) {
    let two = R::of(2.0);
    let e = x.at_most(R::of(MISH_LINEAR_FROM)).exp();
    let n = e * (e + two);
    let ratio = n / (n + two);
    let slope = (R::of(4.0) * e / (n + two)) * ((e + R::of(1.0)) / (n + two));
    (ratio, slope)
}

inlined! {
    /// `ln(1 + exp(x))`, and `x` above PyTorch's threshold.
    pub fn softplus<R: Real>(x: R) -> R {
        let sum = x.exp().ln_1p();
        if x > R::of(SOFTPLUS_LINEAR_FROM) { x } else { sum }
    }
}

/// [`softplus`]' slope.
pub fn softplus_slope<R: Real>(x: R) -> R {
    if x > R::of(SOFTPLUS_LINEAR_FROM) {
        R::of(1.0)
    } else {
        sigmoid(x)
    }
}

inlined! {
    fn laplace_argument<R: Real>(x: R) -> R { (x - R::of(LAPLACE_CENTER)) / R::of(LAPLACE_WIDTH) }
}
