//! Row-wise LayerNorm and RMSNorm.
//!
//! `y = x̂ · gain + bias`, where `x̂` is the row divided by the root of its variance (LayerNorm, after subtracting
//! the mean) or of its mean square (RMSNorm), either with `eps` added.
//!
//! f32 rows are normalized in f64 and rounded once. That costs little beside the adjacent products, and adds no
//! error. Half types are computed in f32, where a row's mean near 1000 is itself rounded by 3e-5, which is large
//! beside a deviation of 0.01. For half types and f64, the mean is therefore subtracted twice: the second pass
//! removes the first one's rounding error.

use crate::vectors::{Element, Real, sum, update_and_sum};

/// The statistic whose root divides a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// The variance, after subtracting the mean (LayerNorm).
    Variance,
    /// The mean square (RMSNorm).
    MeanSquare,
}

/// The gain for a stored weight `w`, and the rounding for half types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gain {
    /// Gain `w`. `x̂` stays in f32 until the end (PyTorch's LayerNorm).
    Weight,
    /// Gain `w`. `x̂` is rounded to a half stored type first (transformers' `LlamaRMSNorm`).
    WeightAfterRounding,
    /// Gain `1 + w`. `x̂` stays in f32 until the end (transformers' `GemmaRMSNorm`).
    OnePlusWeight,
}

/// A norm for rows as long as its weight.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// The statistic whose root divides a row.
    pub statistic: Statistic,
    /// The gain for a stored weight.
    pub gain: Gain,
    /// Added to the statistic under the root.
    pub eps: f64,
}

impl Norm {
    /// Returns weight and bias, widened.
    pub(crate) fn affine<T: Element>(&self, weight: &[T], bias: Option<&[T]>) -> Affine<T::Wide> {
        Affine {
            gain: self.gains(weight),
            // Adding -0 leaves every value unchanged.
            bias: match bias {
                Some(bias) => bias.iter().map(|b| b.to_wide()).collect(),
                None => vec![T::Wide::of(-0.0); weight.len()],
            },
        }
    }

    /// Writes the row, for LayerNorm minus its mean, to `centered`. Returns `1 / √(statistic + eps)`.
    #[inline(always)]
    pub(crate) fn center<T: Element>(&self, x: &[T], centered: &mut [T::Wide]) -> T::Wide {
        let n = T::Wide::of(centered.len() as f64);
        for (centered, x) in centered.iter_mut().zip(x) {
            *centered = x.to_wide();
        }
        let squares = match self.statistic {
            Statistic::MeanSquare => sum(centered, |x: T::Wide| x * x),
            Statistic::Variance => {
                let mean = sum(centered, |x: T::Wide| x) / n;
                if sums_are_wider::<T>() {
                    // An f32 row's mean in f64 leaves no significant remainder.
                    let squares = update_and_sum(centered, |x| x - mean, |x| x * x);
                    return self.scale(squares / n);
                }
                let left_over = update_and_sum(centered, |x| x - mean, |x| x) / n;
                update_and_sum(centered, |x| x - left_over, |x| x * x)
            }
        };
        self.scale(squares / n)
    }

    #[inline(always)]
    pub(crate) fn scale<W: Real>(&self, statistic: W) -> W {
        W::of(1.0) / (statistic + W::of(self.eps)).sqrt()
    }

    #[inline(always)]
    pub(crate) fn rounded<T: Element>(&self, normal: T::Wide) -> T::Wide {
        match self.gain {
            // In f32 a second rounding would only move the result away from the exact one.
            Gain::WeightAfterRounding if size_of::<T>() < 4 => T::from_wide(normal).to_wide(),
            _ => normal,
        }
    }

    pub(crate) fn gains<T: Element>(&self, weight: &[T]) -> Vec<T::Wide> {
        let gain = |w: &T| match self.gain {
            Gain::OnePlusWeight => T::Wide::of(1.0) + w.to_wide(),
            Gain::Weight | Gain::WeightAfterRounding => w.to_wide(),
        };
        weight.iter().map(gain).collect()
    }
}

/// A norm's weight and bias, widened to the type in which it sums.
#[derive(Clone, Debug)]
pub struct Affine<W> {
    pub(crate) gain: Vec<W>,
    pub(crate) bias: Vec<W>,
}

impl<W> Affine<W> {
    /// Returns the row length.
    pub fn width(&self) -> usize {
        self.gain.len()
    }
}

/// Returns whether a row's sums are in f64 and its elements are not, so that subtracting the mean once is enough.
const fn sums_are_wider<T: Element>() -> bool {
    size_of::<T::Wide>() > 4 && size_of::<T::Wide>() > size_of::<T>()
}
