//! LayerNorm and RMSNorm of rows, forward and backward.
//!
//! `y = x̂ · gain + bias`, where `x̂` is the row divided by the root of its variance (LayerNorm, after
//! taking the mean off) or of its mean square (RMSNorm).
//!
//! f32 rows are normalised in f64 and rounded once, which costs little beside the products around a
//! norm and leaves nothing of its own error. Half types are computed in f32, where the mean of a row near 1000 is itself
//! rounded by 3e-5, much beside a deviation of 0.01: there, and in f64, the mean is taken off twice, and the second pass
//! takes off what the first one left.

mod backward;
mod row;

use super::{
    Element, Real,
    isa::Isa,
    lanes::{sum, update_and_sum},
    parallel,
};

pub use backward::Gradients;
pub use row::Rows;
use row::SingleRow;

/// What a row is divided by the root of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// The variance, after the mean is taken off (LayerNorm).
    Variance,
    /// The mean square (RMSNorm).
    MeanSquare,
}

/// The factor that a stored weight `w` stands for, and when half types round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gain {
    /// `w`; `x̂` stays in f32 until the end (PyTorch's LayerNorm).
    Weight,
    /// `w`; `x̂` is rounded to a half stored type first (transformers' `LlamaRMSNorm`).
    WeightAfterRounding,
    /// `1 + w`; `x̂` stays in f32 until the end (transformers' `GemmaRMSNorm`).
    OnePlusWeight,
}

/// A norm over rows as long as its weight.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// What a row is divided by the root of.
    pub statistic: Statistic,
    /// What the weight means.
    pub gain: Gain,
    /// Added to the statistic before the root.
    pub eps: f64,
}

/// Elements per piece of work in the forward pass, which any number of rows may share.
const CHUNK: usize = 8192;

impl Norm {
    /// Writes the norm of each row of `x` to `y`.
    pub fn forward<T: Rows>(
        &self,
        isa: Isa,
        x: &[T],
        weight: &[T],
        bias: Option<&[T]>,
        y: &mut [T],
    ) {
        let width = weight.len();
        assert_eq!(x.len(), y.len());
        if width == 0 {
            return;
        }
        let affine = self.affine(weight, bias);
        let rows = (CHUNK / width).max(1);
        parallel::for_chunks(y, rows * width, |start, y| {
            let x = &x[start..][..y.len()];
            T::normalise(isa, self, &affine, x, y);
        });
    }

    /// Weight and bias as [`Self::row`] takes them.
    pub fn affine<T: Element>(&self, weight: &[T], bias: Option<&[T]>) -> Affine<T::Wide> {
        Affine {
            gain: self.gains(weight),
            // -0 changes nothing that it is added to.
            bias: match bias {
                Some(bias) => bias.iter().map(|b| b.to_wide()).collect(),
                None => vec![T::Wide::of(-0.0); weight.len()],
            },
        }
    }

    /// Writes the norm of one row to `y`.
    pub fn row(&self, isa: Isa, x: &[f32], affine: &Affine<f64>, y: &mut [f32]) {
        isa.widening(SingleRow::new(self, affine, x, y));
    }

    /// Replaces a row by its norm.
    pub fn row_in_place(&self, isa: Isa, row: &mut [f32], affine: &Affine<f64>) {
        isa.widening(SingleRow::in_place(self, affine, row));
    }

    /// Writes the row, without its mean for LayerNorm, to `centred`; returns `1 / √(statistic + eps)`.
    #[inline(always)]
    fn centre<T: Element>(&self, x: &[T], centred: &mut [T::Wide]) -> T::Wide {
        let n = T::Wide::of(centred.len() as f64);
        for (centred, x) in centred.iter_mut().zip(x) {
            *centred = x.to_wide();
        }
        let squares = match self.statistic {
            Statistic::MeanSquare => sum(centred, |x: T::Wide| x * x),
            Statistic::Variance => {
                let mean = sum(centred, |x: T::Wide| x) / n;
                if sums_are_wider::<T>() {
                    // A mean in f64 of numbers in f32 leaves nothing over.
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
    fn scale<W: Real>(&self, statistic: W) -> W {
        W::of(1.0) / (statistic + W::of(self.eps)).sqrt()
    }

    #[inline(always)]
    fn rounded<T: Element>(&self, normal: T::Wide) -> T::Wide {
        match self.gain {
            // In f32 the twice rounded result would only be further from the truth.
            Gain::WeightAfterRounding if size_of::<T>() < 4 => T::from_wide(normal).to_wide(),
            _ => normal,
        }
    }

    fn gains<T: Element>(&self, weight: &[T]) -> Vec<T::Wide> {
        let gain = |w: &T| match self.gain {
            Gain::OnePlusWeight => T::Wide::of(1.0) + w.to_wide(),
            Gain::Weight | Gain::WeightAfterRounding => w.to_wide(),
        };
        weight.iter().map(gain).collect()
    }
}

/// Weight and bias of a norm, widened.
#[derive(Clone, Debug)]
pub struct Affine<W> {
    gain: Vec<W>,
    bias: Vec<W>,
}

impl<W> Affine<W> {
    /// The length of a row.
    pub fn width(&self) -> usize {
        self.gain.len()
    }
}

/// Whether a row's sums have more digits than f32 computes with, beyond those of its numbers.
const fn sums_are_wider<T: Element>() -> bool {
    size_of::<T::Wide>() > 4 && size_of::<T::Wide>() > size_of::<T>()
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
