//! The AdamW parameter update, and the sum of squares for gradient clipping.

use crate::cpu::Cpu;
use crate::threads::{Shared, parallel};
use crate::vectors::{
    Element, Level, LevelTask, Real, Slice, SliceMut, Stored, lanes::LANES, with_type,
};

/// The settings for one update, the same for every element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Step size.
    pub learning_rate: f64,
    /// Decay for the first moment.
    pub beta1: f64,
    /// Decay for the second moment.
    pub beta2: f64,
    /// Added to the second moment's root.
    pub eps: f64,
    /// Weight decay. The fraction of the parameter that is subtracted is this times the learning rate.
    pub weight_decay: f64,
    /// The number of this parameter's update, counted from 1.
    pub step: u64,
    /// A factor on the gradient, for example from clipping.
    pub gradient_scale: f64,
}

/// The factors in an update, in the type in which it is computed.
struct UpdateFactors<R> {
    scale: R,
    keep: R,
    beta2: R,
    first_weight: R,
    /// True if the first moment is computed from the gradient's side. `first_weight` is then negative.
    from_gradient: bool,
    second_weight: R,
    second_root: R,
    eps: R,
    step_size: R,
}

impl Update {
    /// Returns `1 - βᵗ` for both moments.
    pub fn bias_corrections(&self) -> (f64, f64) {
        let power = |beta: f64| 1.0 - libm::pow(beta, self.step as f64);
        (power(self.beta1), power(self.beta2))
    }

    fn constants<R: Real>(&self) -> UpdateFactors<R> {
        let (first, second) = self.bias_corrections();
        // From the nearer side, like torch's `lerp`: with a decay of 0 the moment is exactly the gradient. Otherwise
        // an earlier moment would leave a remainder when it is subtracted from itself.
        let from_gradient = self.beta1 <= 0.5;
        let first_weight = match from_gradient {
            true => -self.beta1,
            false => 1.0 - self.beta1,
        };
        UpdateFactors {
            scale: R::of(self.gradient_scale),
            keep: R::of(1.0 - self.learning_rate * self.weight_decay),
            beta2: R::of(self.beta2),
            first_weight: R::of(first_weight),
            from_gradient,
            second_weight: R::of(1.0 - self.beta2),
            second_root: R::of(second.sqrt()),
            eps: R::of(self.eps),
            step_size: R::of(self.learning_rate / first),
        }
    }
}

/// Elements per task: its parts of the four arrays, 256 KiB in f32, fit a core's L2 cache.
const CHUNK: usize = 16 * 1024;

/// Updates `parameter` and both moments by one step, in one pass over the four arrays (`torch.optim.AdamW`, with its
/// operation order; Loshchilov and Hutter 2017, <https://arxiv.org/abs/1711.05101>). The moments are f64 for f64
/// parameters, else f32.
///
/// Every instruction set gives the same bits: nothing is summed across elements, and nothing is fused.
///
/// # Panics
/// If lengths or types do not match.
pub fn update(
    cpu: Cpu,
    update: &Update,
    parameter: SliceMut,
    gradient: Slice,
    [first, second]: [SliceMut; 2],
) {
    with_type!(gradient, T => {
        let (parameter, gradient) = (T::of_slice_mut(parameter), T::of_slice(gradient));
        let moments = [Stored::of_slice_mut(first), Stored::of_slice_mut(second)];
        typed_update::<T>(cpu, update, parameter, gradient, moments);
    });
}

fn typed_update<T: Element>(
    cpu: Cpu,
    update: &Update,
    parameter: &mut [T],
    gradient: &[T],
    [first, second]: [&mut [T::Acc]; 2],
) {
    assert!(
        [gradient.len(), first.len(), second.len()] == [parameter.len(); 3],
        "parameter, gradient and moments differ in length"
    );
    let constants = &update.constants::<T::Acc>();
    let len = parameter.len();
    let (parameter, first, second) = (
        Shared::new(parameter),
        Shared::new(first),
        Shared::new(second),
    );
    parallel::for_tasks(cpu.threads, len.div_ceil(CHUNK), |task| {
        let range = task * CHUNK..len.min((task + 1) * CHUNK);
        // SAFETY: `for_tasks` runs each number once, and chunks do not overlap.
        let parameter = unsafe { parameter.range(range.clone()) };
        // SAFETY: as above.
        let (first, second) = unsafe { (first.range(range.clone()), second.range(range.clone())) };
        cpu.isa.enter(UpdateRange {
            constants,
            parameter,
            gradient: &gradient[range],
            first,
            second,
        });
    });
}

/// A range in the four arrays.
struct UpdateRange<'a, T: Element> {
    constants: &'a UpdateFactors<T::Acc>,
    parameter: &'a mut [T],
    gradient: &'a [T],
    first: &'a mut [T::Acc],
    second: &'a mut [T::Acc],
}

impl<T: Element> LevelTask for UpdateRange<'_, T> {
    // Scalar code, which the compiler vectorizes with the instruction set.
    #[inline(always)]
    fn compute<L: Level>(self, _: L) {
        let (n, c) = (self.parameter.len(), self.constants);
        let (parameter, gradient) = (self.parameter, &self.gradient[..n]);
        let (first, second) = (&mut self.first[..n], &mut self.second[..n]);
        for i in 0..n {
            let g = gradient[i].widen() * c.scale;
            let from = if c.from_gradient { g } else { first[i] };
            first[i] = from + c.first_weight * (g - first[i]);
            second[i] = second[i] * c.beta2 + c.second_weight * g * g;
            let root = second[i].sqrt() / c.second_root + c.eps;
            let kept = parameter[i].widen() * c.keep;
            parameter[i] = T::narrow(kept - c.step_size * first[i] / root);
        }
    }
}

/// Returns `Σ x²` in f64. Chunks are summed in order. A NaN or an infinity anywhere makes the sum NaN or infinite.
pub fn sum_of_squares(cpu: Cpu, x: Slice) -> f64 {
    let mut sums = vec![0.0; x.len().div_ceil(CHUNK)];
    parallel::for_chunks(cpu.threads, &mut sums, 1, |index, total| {
        let piece = x.part(index * CHUNK..x.len().min((index + 1) * CHUNK));
        total[0] = with_type!(piece, T => cpu.isa.enter(Squares(T::of_slice(piece))));
    });
    sums.iter().sum()
}

/// The sum of squares in one chunk.
struct Squares<'a, T>(&'a [T]);

impl<T: Element<Acc: Into<f64>>> LevelTask<f64> for Squares<'_, T> {
    #[inline(always)]
    fn compute<L: Level>(self, _: L) -> f64 {
        let mut lanes = [0.0; LANES];
        let (chunks, tail) = self.0.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                let x: f64 = x.widen().into();
                *lane += x * x;
            }
        }
        for (lane, x) in lanes.iter_mut().zip(tail) {
            let x: f64 = x.widen().into();
            *lane += x * x;
        }
        lanes.iter().sum()
    }
}

#[cfg(test)]
mod tests;
