//! LayerNorm and RMSNorm of rows, forward and backward.
//!
//! `y = x̂ · gain + bias`, where `x̂` is the row divided by the root of its variance (LayerNorm, after
//! taking the mean off) or of its mean square (RMSNorm).
//!
//! f32 rows are normalised in f64 and rounded once, which costs little beside the products around a
//! norm and leaves nothing of its own error. Elsewhere the mean is taken off twice: in f32, which half types
//! are computed in, the mean of a row near 1000 is itself rounded by 3e-5, much beside a deviation
//! of 0.01; the second pass takes off what the first one left.

use super::{
    Element, Real, Routine,
    isa::Isa,
    lanes::{sum, sum_pairs, update_and_sum},
    parallel,
};

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

/// Gradients of a norm's parameters.
pub struct Gradients<T> {
    /// One row.
    pub dweight: Vec<T>,
    /// One row.
    pub dbias: Vec<T>,
}

/// Elements per piece of work in the forward pass, which any number of rows may share.
const CHUNK: usize = 8192;

/// Rows whose weight gradients are summed in sequence before they are added to the others': part
/// of the result, since it fixes the order of addition.
const ROWS_PER_SUM: usize = 64;

impl Norm {
    /// Writes the norm of each row of `x` to `y`.
    pub fn forward<T: Element>(
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
            let mut row = vec![T::Wide::ZERO; width];
            let x = &x[start..][..y.len()];
            for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                self.row(isa, x, &affine, &mut row, y);
            }
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

    /// Writes the norm of one row to `y`; `scratch` is as long.
    pub fn row<T: Element>(
        &self,
        isa: Isa,
        x: &[T],
        affine: &Affine<T::Wide>,
        scratch: &mut [T::Wide],
        y: &mut [T],
    ) {
        isa.enter(Row {
            norm: self,
            x,
            affine,
            scratch,
            y,
        });
    }

    /// Replaces a row by its norm; `scratch` is as long.
    pub fn row_in_place<T: Element>(
        &self,
        isa: Isa,
        row: &mut [T],
        affine: &Affine<T::Wide>,
        scratch: &mut [T::Wide],
    ) {
        isa.enter(RowInPlace {
            norm: self,
            row,
            affine,
            scratch,
        });
    }

    /// Writes the gradient of `x` for the cotangent `dy`, and returns those of weight and bias, in one pass over the rows.
    ///
    /// With `g = dy · gain`: `dx = (g - mean(g) - x̂ · mean(g · x̂)) / root`, without the first mean
    /// for RMSNorm; `dweight = Σ dy · x̂` and `dbias = Σ dy` over the rows.
    pub fn backward<T: Element>(
        &self,
        isa: Isa,
        x: &[T],
        weight: &[T],
        dy: &[T],
        dx: &mut [T],
    ) -> Gradients<T> {
        let width = weight.len();
        assert_eq!((x.len(), dy.len()), (dx.len(), dx.len()));
        if width == 0 {
            return Gradients {
                dweight: Vec::new(),
                dbias: Vec::new(),
            };
        }
        let gain = self.gains(weight);
        let chunk = ROWS_PER_SUM * width;
        // Per chunk of rows: [dweight | dbias]
        let mut sums = vec![T::Wide::ZERO; x.len().div_ceil(chunk) * 2 * width];
        parallel::for_chunk_pairs(dx, chunk, &mut sums, 2 * width, |start, dx, sums| {
            isa.enter(BackwardRows {
                norm: self,
                gain: &gain,
                x: &x[start..],
                dy: &dy[start..],
                dx,
                sums,
            });
        });
        let mut total = vec![T::Wide::ZERO; 2 * width];
        for sums in sums.chunks_exact(2 * width) {
            for (total, &sum) in total.iter_mut().zip(sums) {
                *total += sum;
            }
        }
        let mut total = total.into_iter().map(T::from_wide);
        let dweight = total.by_ref().take(width).collect();
        Gradients {
            dweight,
            dbias: total.collect(),
        }
    }

    /// `dx` of one row from its `x̂` and `g`.
    #[inline(always)]
    fn input_gradient<T: Element>(
        &self,
        normal: &[T::Wide],
        g: &[T::Wide],
        scale: T::Wide,
        dx: &mut [T],
    ) {
        let n = T::Wide::of(normal.len() as f64);
        let along_normal = sum_pairs(g, normal, |g, normal| g * normal) / n;
        let mean = match self.statistic {
            Statistic::Variance => sum(g, |g| g) / n,
            Statistic::MeanSquare => T::Wide::ZERO,
        };
        for ((dx, &g), &normal) in dx.iter_mut().zip(g).zip(normal) {
            *dx = T::from_wide(((g - mean) - normal * along_normal) * scale);
        }
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

    /// What [`Self::centre`] takes off a row, and what it returns; for sums that are wider than the row's numbers.
    #[inline(always)]
    fn moments<T: Element>(&self, x: &[T]) -> (T::Wide, T::Wide) {
        let n = T::Wide::of(x.len() as f64);
        let mean = match self.statistic {
            Statistic::MeanSquare => T::Wide::ZERO,
            Statistic::Variance => sum(x, T::to_wide) / n,
        };
        let squares = sum(x, |x: T| {
            let centred = x.to_wide() - mean;
            centred * centred
        });
        (mean, self.scale(squares / n))
    }

    #[inline(always)]
    fn scale<W: Real>(&self, statistic: W) -> W {
        W::of(1.0) / (statistic + W::of(self.eps)).sqrt()
    }

    /// One element of a row.
    #[inline(always)]
    fn finish<T: Element>(&self, normal: T::Wide, (gain, bias): (T::Wide, T::Wide)) -> T {
        T::from_wide(self.rounded::<T>(normal) * gain + bias)
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

impl<W: Copy> Affine<W> {
    /// Gain and bias of each column.
    #[inline(always)]
    fn terms(&self) -> impl Iterator<Item = (W, W)> {
        self.gain.iter().copied().zip(self.bias.iter().copied())
    }

    /// The length of a row.
    pub fn width(&self) -> usize {
        self.gain.len()
    }
}

struct Row<'a, T: Element> {
    norm: &'a Norm,
    x: &'a [T],
    affine: &'a Affine<T::Wide>,
    scratch: &'a mut [T::Wide],
    y: &'a mut [T],
}

impl<T: Element> Routine for Row<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { norm, x, y, .. } = self;
        let affine = self.affine.terms();
        if sums_are_wider::<T>() {
            // Widened three times rather than written down wide.
            let (mean, scale) = norm.moments(x);
            for ((y, x), affine) in y.iter_mut().zip(x).zip(affine) {
                *y = norm.finish((x.to_wide() - mean) * scale, affine);
            }
        } else {
            let scale = norm.centre(x, self.scratch);
            for ((y, &centred), affine) in y.iter_mut().zip(&*self.scratch).zip(affine) {
                *y = norm.finish(centred * scale, affine);
            }
        }
    }
}

struct RowInPlace<'a, T: Element> {
    norm: &'a Norm,
    row: &'a mut [T],
    affine: &'a Affine<T::Wide>,
    scratch: &'a mut [T::Wide],
}

impl<T: Element> Routine for RowInPlace<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { norm, row, .. } = self;
        let affine = self.affine.terms();
        if sums_are_wider::<T>() {
            let (mean, scale) = norm.moments(row);
            for (x, affine) in row.iter_mut().zip(affine) {
                *x = norm.finish((x.to_wide() - mean) * scale, affine);
            }
        } else {
            let scale = norm.centre(row, self.scratch);
            for ((y, &centred), affine) in row.iter_mut().zip(&*self.scratch).zip(affine) {
                *y = norm.finish(centred * scale, affine);
            }
        }
    }
}

/// Whether a row's sums have more digits than f32 computes with, beyond those of its numbers.
const fn sums_are_wider<T: Element>() -> bool {
    size_of::<T::Wide>() > 4 && size_of::<T::Wide>() > size_of::<T>()
}

struct BackwardRows<'a, T: Element> {
    norm: &'a Norm,
    gain: &'a [T::Wide],
    x: &'a [T],
    dy: &'a [T],
    dx: &'a mut [T],
    /// `[dweight | dbias]`
    sums: &'a mut [T::Wide],
}

impl<T: Element> Routine for BackwardRows<'_, T> {
    #[inline(always)]
    fn run(self) {
        let width = self.gain.len();
        let (dweight, dbias) = self.sums.split_at_mut(width);
        let mut normal = vec![T::Wide::ZERO; width];
        let mut g = vec![T::Wide::ZERO; width];
        let rows = self.x.chunks_exact(width).zip(self.dy.chunks_exact(width));
        for ((x, dy), dx) in rows.zip(self.dx.chunks_exact_mut(width)) {
            let scale = self.norm.centre(x, &mut normal);
            let of_dy = dy.iter().zip(&mut g).zip(self.gain);
            let of_sums = dweight.iter_mut().zip(dbias.iter_mut());
            for ((normal, ((dy, g), &gain)), (dweight, dbias)) in
                normal.iter_mut().zip(of_dy).zip(of_sums)
            {
                let dy = dy.to_wide();
                *normal = *normal * scale;
                *g = dy * gain;
                *dweight += dy * *normal;
                *dbias += dy;
            }
            self.norm.input_gradient(&normal, &g, scale, dx);
        }
    }
}

#[cfg(test)]
mod tests;
