//! Gradients for a norm's input, weight and bias.

use super::kind::{Norm, Statistic};
use crate::vectors::{
    Element, Level, LevelTask, Real, Slice, SliceMut, Stored, sum, sum_pairs, with_type,
};
use crate::{cpu::Cpu, threads::parallel};

/// Rows whose contributions are summed in sequence before they are added to the others. Part of the definition,
/// because it fixes the summation order.
const ROWS_PER_SUM: usize = 64;

impl Norm {
    /// Writes the gradients for `x`, weight and bias, given the output's gradient `dy`, in one pass over the rows.
    /// All slices have one type.
    ///
    /// With `g = dy · gain`: `dx = (g - mean(g) - x̂ · mean(g · x̂)) / root`, without the first mean for RMSNorm;
    /// `dweight = Σ dy · x̂` and `dbias = Σ dy` over the rows.
    ///
    /// # Panics
    /// If lengths or types do not match.
    pub fn backward(
        &self,
        cpu: Cpu,
        x: Slice,
        weight: Slice,
        dy: Slice,
        dx: SliceMut,
        [dweight, dbias]: [SliceMut; 2],
    ) {
        with_type!(x, T => {
            let (x, weight, dy, dx) = (T::of_slice(x), T::of_slice(weight), T::of_slice(dy), T::of_slice_mut(dx));
            self.typed_backward(cpu, x, weight, dy, dx, [T::of_slice_mut(dweight), T::of_slice_mut(dbias)]);
        });
    }

    fn typed_backward<T: Element>(
        &self,
        cpu: Cpu,
        x: &[T],
        weight: &[T],
        dy: &[T],
        dx: &mut [T],
        [dweight, dbias]: [&mut [T]; 2],
    ) {
        let width = weight.len();
        assert_eq!((x.len(), dy.len()), (dx.len(), dx.len()));
        assert_eq!((dweight.len(), dbias.len()), (width, width));
        if width == 0 {
            return;
        }
        let gain = self.gains(weight);
        let chunk = ROWS_PER_SUM * width;
        // Partial sums for each chunk of rows: [dweight | dbias]
        let mut sums = vec![T::Wide::ZERO; x.len().div_ceil(chunk) * 2 * width];
        let threads = cpu.for_elements(x.len()).threads;
        parallel::for_chunk_pairs(
            threads,
            dx,
            chunk,
            &mut sums,
            2 * width,
            |start, dx, sums| {
                cpu.isa.enter(BackwardRows {
                    norm: self,
                    gain: &gain,
                    x: &x[start..],
                    dy: &dy[start..],
                    dx,
                    sums,
                });
            },
        );
        let mut total = vec![T::Wide::ZERO; 2 * width];
        for sums in sums.chunks_exact(2 * width) {
            for (total, &sum) in total.iter_mut().zip(sums) {
                *total += sum;
            }
        }
        for (gradient, total) in dweight.iter_mut().chain(dbias).zip(total) {
            *gradient = T::from_wide(total);
        }
    }

    /// Computes `dx` for one row from its `x̂` (`normal`) and `g`.
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
    /// `[dweight | dbias]`, `width` elements each.
    sums: &'a mut [T::Wide],
}

impl<T: Element> LevelTask for BackwardRows<'_, T> {
    #[inline(always)]
    fn compute<L: Level>(self, _: L) {
        let width = self.gain.len();
        let (dweight, dbias) = self.sums.split_at_mut(width);
        let mut normal = vec![T::Wide::ZERO; width];
        let mut g = vec![T::Wide::ZERO; width];
        let rows = self.x.chunks_exact(width).zip(self.dy.chunks_exact(width));
        for ((x, dy), dx) in rows.zip(self.dx.chunks_exact_mut(width)) {
            let scale = self.norm.center(x, &mut normal);
            let scaled = dy.iter().zip(&mut g).zip(self.gain);
            let sums = dweight.iter_mut().zip(dbias.iter_mut());
            for ((normal, ((dy, g), &gain)), (dweight, dbias)) in
                normal.iter_mut().zip(scaled).zip(sums)
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
