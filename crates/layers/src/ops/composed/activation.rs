//! Activations and their slopes, and gates.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use candle_blocks_kernels::rows::activation::{LAPLACE_CENTER, LAPLACE_WIDTH};
use candle_core::{DType, Result};

use crate::config::Activation;
use crate::ops::cpu::{Backend, backend};

use super::{Array, Composed, Taped};

impl Taped<Composed> {
    pub(in crate::ops) fn activate(&self, activation: Activation) -> Result<Self> {
        let (slot, dtype, x) = (self.slot.clone(), self.dtype(), self.view()?.contiguous()?);
        let y = if x.is_empty() {
            x.clone()
        } else {
            value(&x.widened()?, activation)?
        };
        Ok(
            self.mapped(y.to_dtype(dtype)?, &[slot.place], move |pass, dy| {
                if x.is_empty() {
                    return pass.add(&slot, dy);
                }
                let slope = slope(&x.widened()?, activation)?;
                pass.add(&slot, dy.widened()?.mul(&slope)?.to_dtype(dtype)?)
            }),
        )
    }

    pub(in crate::ops) fn gate(&self, up: &Self, activation: Activation) -> Result<Self> {
        let gate = match activation {
            Activation::Identity => self.clone(),
            _ => self.activate(activation)?,
        };
        let (slots, data) = (
            [gate.slot.clone(), up.slot.clone()],
            [gate.view()?, up.view()?],
        );
        let asks = [slots[0].place, slots[1].place];
        let y = data[0].mul(&data[1])?;
        Ok(gate.mapped(y, &asks, move |pass, dy| {
            pass.add(&slots[1], dy.mul(&data[0])?)?;
            pass.add(&slots[0], dy.mul(&data[1])?)
        }))
    }
}

/// Computes the activation in f32 or f64.
fn value(x: &Array, activation: Activation) -> Result<Array> {
    match activation {
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => x.mul(&tanh_of_cubic(x)?.affine(0.5, 0.5)?),
        Activation::QuickGelu => x.mul(&x.affine(1.702, 0.0)?.sigmoid()?),
        Activation::ClippedGelu => gelu(x)?.at_most(10.0),
        Activation::Relu => x.at_least(0.0),
        Activation::Relu2 => x.at_least(0.0)?.sqr(),
        Activation::Relu6 => x.at_least(0.0)?.at_most(6.0),
        Activation::LeakyRelu => x.gt(&x.full(0.0)?)?.select(x, &x.affine(0.01, 0.0)?),
        Activation::Silu => x.silu(),
        Activation::Mish => x.mul(&tanh_of_softplus(x)?),
        Activation::HardSwish => {
            let share = x.affine(1.0 / 6.0, 0.5)?;
            x.mul(&share.at_least(0.0)?.at_most(1.0)?)
        }
        Activation::Sigmoid => x.sigmoid(),
        Activation::Tanh => x.tanh(),
        Activation::Laplace => normal_cdf(&laplace_argument(x)?.affine(2f64.sqrt(), 0.0)?),
        Activation::Softplus => softplus(x),
        Activation::SqrtSoftplus => sqrt_softplus(x),
        Activation::Identity => Ok(x.clone()),
    }
}

/// Computes the activation's derivative.
fn slope(x: &Array, activation: Activation) -> Result<Array> {
    // `s(a·x) · (1 + a·x · (1 - s(a·x)))`, the derivative of `x · s(a·x)`
    let swish_slope = |a: f64| {
        let ax = x.affine(a, 0.0)?;
        let s = ax.sigmoid()?;
        s.mul(&ax.mul(&s.affine(-1.0, 1.0)?)?.affine(1.0, 1.0)?)
    };
    let step = |above: &Array| above.select(&x.full(1.0)?, &x.zeros(x.dims())?);
    let zero = || x.zeros(x.dims());
    match activation {
        Activation::Gelu => gelu_slope(x),
        Activation::GeluTanh => {
            // `(1 + t) / 2 + x/2 · (1 - t²) · u'` with `t = tanh(u)`
            let t = tanh_of_cubic(x)?;
            let inner = x.sqr()?.affine(3.0 * CUBIC * TANH_SCALE, TANH_SCALE)?;
            let rest = t.sqr()?.affine(-0.5, 0.5)?.mul(&inner)?.mul(x)?;
            t.affine(0.5, 0.5)?.add(&rest)
        }
        Activation::QuickGelu => swish_slope(1.702),
        Activation::ClippedGelu => {
            let below = gelu(x)?.lt(&x.full(10.0)?)?;
            below.select(&gelu_slope(x)?, &x.zeros(x.dims())?)
        }
        Activation::Relu => step(&x.gt(&zero()?)?),
        Activation::Relu2 => x.at_least(0.0)?.affine(2.0, 0.0),
        Activation::Relu6 => {
            let within = step(&x.gt(&zero()?)?)?;
            within.mul(&step(&x.lt(&x.full(6.0)?)?)?)
        }
        Activation::LeakyRelu => {
            let positive = x.gt(&zero()?)?;
            positive.select(&x.full(1.0)?, &x.full(0.01)?)
        }
        Activation::Silu => swish_slope(1.0),
        Activation::Mish => {
            // `w + x · (1 - w²) · s(x)`
            let w = tanh_of_softplus(x)?;
            let rest = w.sqr()?.affine(-1.0, 1.0)?.mul(&x.sigmoid()?)?.mul(x)?;
            w.add(&rest)
        }
        Activation::HardSwish => {
            let middle = x.affine(1.0 / 3.0, 0.5)?;
            let right = x.ge(&x.full(3.0)?)?.select(&x.full(1.0)?, &middle)?;
            x.le(&x.full(-3.0)?)?.select(&x.zeros(x.dims())?, &right)
        }
        Activation::Sigmoid => {
            let s = x.sigmoid()?;
            s.mul(&s.affine(-1.0, 1.0)?)
        }
        Activation::Tanh => x.tanh()?.sqr()?.affine(-1.0, 1.0),
        Activation::Laplace => {
            let bell = laplace_argument(x)?.sqr()?.affine(-1.0, 0.0)?.exp()?;
            bell.affine(0.5 * FRAC_2_SQRT_PI / LAPLACE_WIDTH, 0.0)
        }
        Activation::Softplus => {
            let high = x.gt(&x.full(20.0)?)?;
            high.select(&x.full(1.0)?, &x.sigmoid()?)
        }
        Activation::SqrtSoftplus => {
            let half = sqrt_softplus(x)?.affine(2.0, 0.0)?;
            let (low, high) = (x.lt(&x.full(-40.0)?)?, x.gt(&x.full(20.0)?)?);
            let numerator = high.select(&x.full(1.0)?, &x.sigmoid()?)?;
            low.select(&half.affine(0.25, 0.0)?, &numerator.div(&half)?)
        }
        Activation::Identity => x.full(1.0),
    }
}

const CUBIC: f64 = 0.044715;
/// `√(2/π)`
const TANH_SCALE: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

/// Computes `tanh(√(2/π) · (x + 0.044715 x³))`. candle's own `gelu` uses fewer digits for both constants.
fn tanh_of_cubic(x: &Array) -> Result<Array> {
    x.sqr()?
        .affine(CUBIC * TANH_SCALE, TANH_SCALE)?
        .mul(x)?
        .tanh()
}

fn gelu(x: &Array) -> Result<Array> {
    match backend(x.device()) {
        Backend::Cuda => x.gelu_erf(),
        Backend::Metal => x.mul(&normal_cdf(x)?),
    }
}

/// Computes `Φ(x) + x · φ(x)`.
fn gelu_slope(x: &Array) -> Result<Array> {
    let bell = x
        .sqr()?
        .affine(-0.5, 0.0)?
        .exp()?
        .affine(1.0 / (2.0 * PI).sqrt(), 0.0)?;
    normal_cdf(x)?.add(&bell.mul(x)?)
}

/// Computes `Φ(x) = (1 + erf(x / √2)) / 2`.
fn normal_cdf(x: &Array) -> Result<Array> {
    match (backend(x.device()), x.dtype()) {
        (Backend::Metal, DType::F32) => {}
        _ => return x.affine(FRAC_1_SQRT_2, 0.0)?.erf()?.affine(0.5, 0.5),
    }
    // Metal's `erf` has an error of 1.5e-7, and its `exp` adds another. This is `erfc(z) = t · exp(-z² + p(t))` with
    // `t = 1 / (1 + z/2)`, whose relative error is below 1.2e-7 everywhere (Press et al., Numerical Recipes in C,
    // 6.2).
    let z = x.abs()?.affine(FRAC_1_SQRT_2, 0.0)?;
    let t = x.full(1.0)?.div(&z.affine(0.5, 1.0)?)?;
    let [last, before @ ..] = ERFC;
    let mut p = t.affine(last, before[0])?;
    for coefficient in &before[1..] {
        p = p.mul(&t)?.affine(1.0, *coefficient)?;
    }
    let half = p.sub(&z.sqr()?)?.exp()?.mul(&t)?.affine(0.5, 0.0)?;
    let negative = x.lt(&x.full(0.0)?)?;
    negative.select(&half, &half.affine(-1.0, 1.0)?)
}

/// `p`'s coefficients, highest power first.
const ERFC: [f64; 10] = [
    0.17087277,
    -0.82215223,
    1.48851587,
    -1.13520398,
    0.27886807,
    -0.18628806,
    0.09678418,
    0.37409196,
    1.00002368,
    -1.26551223,
];

fn laplace_argument(x: &Array) -> Result<Array> {
    x.affine(1.0 / LAPLACE_WIDTH, -LAPLACE_CENTER / LAPLACE_WIDTH)
}

/// Computes `tanh(ln(1 + eˣ)) = n / (n + 2)` with `n = e²ˣ + 2eˣ`. For positive x both are divided by `e²ˣ`.
fn tanh_of_softplus(x: &Array) -> Result<Array> {
    let positive = x.gt(&x.full(0.0)?)?;
    let e = x.abs()?.affine(-1.0, 0.0)?.exp()?;
    let (square, twice) = (e.sqr()?, e.affine(2.0, 0.0)?);
    let n = twice.add(&positive.select(&x.full(1.0)?, &square)?)?;
    let rest = positive.select(&square.affine(2.0, 0.0)?, &x.full(2.0)?)?;
    n.div(&n.add(&rest)?)
}

/// Computes `ln(1 + exp(x))`, and `x` above 20.
fn softplus(x: &Array) -> Result<Array> {
    let high = x.gt(&x.full(20.0)?)?;
    high.select(x, &logarithm_of_sum(x)?)
}

/// Computes `ln(1 + e)` with `e = exp(x)` as `ln(u) + (e - (u - 1)) / u`, where `u` is `1 + e` rounded.
fn logarithm_of_sum(x: &Array) -> Result<Array> {
    let e = x.exp()?;
    let u = e.affine(1.0, 1.0)?;
    let lost = e.sub(&u.affine(1.0, -1.0)?)?.div(&u)?;
    u.log()?.add(&lost)
}

/// Computes `exp(x/2)` below -40, `√x` above 20, and `√ln(1 + exp(x))` between.
fn sqrt_softplus(x: &Array) -> Result<Array> {
    let (low, high) = (x.lt(&x.full(-40.0)?)?, x.gt(&x.full(20.0)?)?);
    let exponential = x.affine(0.5, 0.0)?.exp()?;
    let between = logarithm_of_sum(x)?.sqrt()?;
    let root = x.at_least(0.0)?.sqrt()?;
    low.select(&exponential, &high.select(&root, &between)?)
}
