//! Gradients of a norm's input, weight and bias.

use super::{
    super::{
        Element, Real, Routine,
        isa::Isa,
        lanes::{sum, sum_pairs},
        parallel,
    },
    Norm, Statistic,
};

/// Gradients of a norm's parameters.
#[must_use]
pub struct Gradients<T> {
    /// `Σ dy · x̂` over the rows, `[width]`.
    pub dweight: Vec<T>,
    /// `Σ dy` over the rows, `[width]`.
    pub dbias: Vec<T>,
}

/// Rows whose contributions are summed in sequence before they are added to those of others. It is part of the
/// result, since it fixes the order of addition.
const ROWS_PER_SUM: usize = 64;

impl Norm {
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
        // Partial sums of each chunk of rows: [dweight | dbias]
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

    /// `dx` of one row from its `x̂` (`normal`) and `g`.
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
}

struct BackwardRows<'a, T: Element> {
    norm: &'a Norm,
    gain: &'a [T::Wide],
    x: &'a [T],
    dy: &'a [T],
    dx: &'a mut [T],
    /// `[dweight | dbias]`, `width` numbers each.
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
