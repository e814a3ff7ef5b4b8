//! xIELU, an activation with trained curvatures on both sides of 0.

use super::compiled::Function;
use crate::vectors::Real;

/// `positive · x² + slope · x` if x is positive, else `negative · (exp(min(x, knee)) - 1 - x) + slope · x` (Huang
/// and Schlag 2024, <https://arxiv.org/abs/2411.13010>; transformers' `XIELUActivation`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// The curvature on the positive side.
    pub positive: f64,
    /// The factor on the negative side.
    pub negative: f64,
    /// The slope near 0 on both sides.
    pub slope: f64,
    /// The upper limit for the exponent, just below 0.
    pub knee: f64,
}

/// The slope of [`Xielu`]. At 0 it is the negative side's.
#[derive(Clone, Copy)]
pub(super) struct XieluSlope(pub Xielu);

impl Xielu {
    /// The derivative with respect to `positive`.
    pub const OF_POSITIVE: Self = Self {
        positive: 1.0,
        negative: 0.0,
        slope: 0.0,
        knee: 0.0,
    };

    /// The derivative with respect to `negative`, which depends on `knee`.
    pub const fn of_negative(knee: f64) -> Self {
        Self {
            positive: 0.0,
            negative: 1.0,
            slope: 0.0,
            knee,
        }
    }
}

impl Function for Xielu {
    #[inline(always)]
    fn at<R: Real>(self, x: R) -> R {
        let right = R::of(self.positive) * x * x;
        // `exp(x) - 1` without cancellation.
        let low = x.at_most(R::of(self.knee));
        let less_one = (R::of(0.5) * low).tanh() * (low.exp() + R::of(1.0));
        let left = R::of(self.negative) * (less_one - x);
        let curved = if x > R::ZERO { right } else { left };
        curved + R::of(self.slope) * x
    }
}

impl Function for XieluSlope {
    #[inline(always)]
    fn at<R: Real>(self, x: R) -> R {
        let right = R::of(2.0 * self.0.positive) * x;
        let knee = R::of(self.0.knee);
        let rising = if x < knee {
            x.at_most(knee).exp()
        } else {
            R::ZERO
        };
        let left = R::of(self.0.negative) * (rising - R::of(1.0));
        let curved = if x > R::ZERO { right } else { left };
        curved + R::of(self.0.slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{RoundingErrors, on};
    use crate::rows::ActivationFunction;
    use crate::vectors::{Isa, Stored};

    const XIELU: Xielu = Xielu {
        positive: 0.7,
        negative: 1.3,
        slope: 0.45,
        knee: -1e-6,
    };

    fn exact(x: f64) -> f64 {
        let curved = match x > 0.0 {
            true => XIELU.positive * x * x,
            false => XIELU.negative * (libm::expm1(x.min(XIELU.knee)) - x),
        };
        curved + XIELU.slope * x
    }

    fn exact_slope(x: f64) -> f64 {
        let curved = match x {
            _ if x > 0.0 => 2.0 * XIELU.positive * x,
            _ if x < XIELU.knee => XIELU.negative * libm::expm1(x),
            _ => -XIELU.negative,
        };
        curved + XIELU.slope
    }

    #[test]
    fn values_and_slopes_equal_the_papers_on_every_level() {
        let grid = (-2000..=2000).map(|i| i as f32 * 0.01);
        let small = (-40..=0).flat_map(|e| [1.3, -1.3].map(|m| m * libm::exp2f(e as f32)));
        let x: Vec<f32> = grid.chain(small).collect();
        for isa in Isa::levels() {
            let function = ActivationFunction::Xielu(XIELU);
            let (mut y, mut slopes) = (vec![0.0; x.len()], vec![1.0; x.len()]);
            function.forward(on(isa, 1), f32::slice(&x), f32::slice_mut(&mut y));
            function.backward(on(isa, 1), f32::slice(&x), f32::slice_mut(&mut slopes));
            let mut worst: [f64; 2] = [0.0; 2];
            for ((&x, y), slope) in x.iter().zip(y).zip(slopes) {
                // Both sides subtract x from a value near x.
                let x = f64::from(x);
                let sizes = [exact(x).abs() + 2.0 * x.abs(), exact_slope(x).abs() + 2.0];
                let errors = [f64::from(y) - exact(x), f64::from(slope) - exact_slope(x)];
                for ((worst, error), size) in worst.iter_mut().zip(errors).zip(sizes) {
                    *worst = worst.max(error.abs() / (f32::STORE * size));
                }
            }
            println!("{isa}: {worst:?} roundings");
            assert!(
                worst.iter().all(|worst| (0.5..4.0).contains(worst)),
                "{worst:?}"
            );
        }
    }

    #[test]
    fn nan_stays_nan() {
        assert!(XIELU.at(f32::NAN).is_nan());
    }
}
