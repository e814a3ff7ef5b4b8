//! LayerNorm and RMSNorm of rows, forward and backward.
//!
//! `y = x̂ · gain + bias`, where `x̂` is the row divided by the root of its variance (LayerNorm, after the mean
//! is subtracted) or of its mean square (RMSNorm), either with `eps` added.
//!
//! f32 rows are normalised in f64 and rounded once: that costs little beside the products around a norm, and
//! leaves no error of its own. Half types are computed in f32, where the mean of a row near 1000 is itself
//! rounded by 3e-5, which is much beside a deviation of 0.01. There, and in f64, the mean is therefore
//! subtracted twice: the second pass removes what the first one left.

use crate::vectors::{Element, Real, sum, update_and_sum};

/// The statistic whose root a row is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// The variance, after the mean is subtracted (LayerNorm).
    Variance,
    /// The mean square (RMSNorm).
    MeanSquare,
}

/// The factor that a stored weight `w` stands for, and when half types are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gain {
    /// `w`; `x̂` stays in f32 until the end (PyTorch's LayerNorm).
    Weight,
    /// `w`; `x̂` is rounded to a half stored type first (transformers' `LlamaRMSNorm`).
    WeightAfterRounding,
    /// `1 + w`; `x̂` stays in f32 until the end (transformers' `GemmaRMSNorm`).
    OnePlusWeight,
}

/// A norm of rows as long as its weight.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// The statistic whose root a row is divided by.
    pub statistic: Statistic,
    /// What the weight stands for.
    pub gain: Gain,
    /// Added to the statistic under the root.
    pub eps: f64,
}

impl Norm {
    /// Weight and bias widened.
    pub(crate) fn affine<T: Element>(&self, weight: &[T], bias: Option<&[T]>) -> Affine<T::Wide> {
        Affine {
            gain: self.gains(weight),
            // Adding -0 leaves every number unchanged.
            bias: match bias {
                Some(bias) => bias.iter().map(|b| b.to_wide()).collect(),
                None => vec![T::Wide::of(-0.0); weight.len()],
            },
        }
    }

    /// Writes the row, for LayerNorm without its mean, to `centred`; returns `1 / √(statistic + eps)`.
    #[inline(always)]
    pub(crate) fn centre<T: Element>(&self, x: &[T], centred: &mut [T::Wide]) -> T::Wide {
        let n = T::Wide::of(centred.len() as f64);
        for (centred, x) in centred.iter_mut().zip(x) {
            *centred = x.to_wide();
        }
        let squares = match self.statistic {
            Statistic::MeanSquare => sum(centred, |x: T::Wide| x * x),
            Statistic::Variance => {
                let mean = sum(centred, |x: T::Wide| x) / n;
                if sums_are_wider::<T>() {
                    // The mean of f32 numbers in f64 leaves no remainder that matters.
                    let squares = update_and_sum(centred, |x| x - mean, |x| x * x);
                    return self.scale(squares / n);
                }
                let left_over = update_and_sum(centred, |x| x - mean, |x| x) / n;
                update_and_sum(centred, |x| x - left_over, |x| x * x)
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

/// Weight and bias of a norm, widened to the type of its sums.
#[derive(Clone, Debug)]
pub struct Affine<W> {
    pub(crate) gain: Vec<W>,
    pub(crate) bias: Vec<W>,
}

impl<W> Affine<W> {
    /// The length of a row.
    pub fn width(&self) -> usize {
        self.gain.len()
    }
}

/// Whether sums of a row are in f64 and its numbers are not, so that one subtraction of the mean is enough.
const fn sums_are_wider<T: Element>() -> bool {
    size_of::<T::Wide>() > 4 && size_of::<T::Wide>() > size_of::<T>()
}
