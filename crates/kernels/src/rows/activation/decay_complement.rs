//! The factor on what a real-gated linear recurrence writes.

use crate::vectors::Real;

/// `√(1 - exp(-2x))` for x from 0 on.
pub fn decay_complement<R: Real>(x: R) -> R {
    complement(x).sqrt()
}

/// [`decay_complement`]'s slope, with transformers' bound of 1000 on that of the root.
pub fn decay_complement_slope<R: Real>(x: R) -> R {
    let square = (-(x + x)).exp();
    square / complement(x).at_least(R::of(LEAST)).sqrt()
}

/// `1 - exp(-2x)` as `tanh(x) · (1 + exp(-2x))`, which does not cancel.
fn complement<R: Real>(x: R) -> R {
    x.tanh() * (R::of(1.0) + (-(x + x)).exp())
}

/// The number whose root has the slope 1000.
const LEAST: f64 = 2.5e-7;
