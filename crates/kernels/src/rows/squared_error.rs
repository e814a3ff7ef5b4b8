//! Sums of squared differences, forward and backward.

use crate::cpu::{Cpu, PIECE};
use crate::threads::parallel;
use crate::vectors::{
    Element, Level, LevelTask, Loop, Real, Slice, SliceMut, Stored, sum_pairs, with_type,
};

/// Returns `Σ (x - target)²`. Differences have the elements' type (f32 for half types), squares and sums are f64.
///
/// # Panics
/// If lengths or types do not match.
pub fn sum(cpu: Cpu, x: Slice, target: Slice) -> f64 {
    assert_eq!(x.len(), target.len());
    // One sum per piece, so that the summation order is the same for any thread count.
    let mut sums = vec![0.0; x.len().div_ceil(PIECE)];
    let threads = cpu.for_elements(x.len()).threads;
    with_type!(x, T => {
        let (x, target) = (T::of_slice(x), T::of_slice(target));
        parallel::for_chunks(threads, &mut sums, 1, |piece, sum| {
            let elements = piece * PIECE..x.len().min((piece + 1) * PIECE);
            sum[0] = cpu.isa.enter(SquaredErrorTask {
                x: &x[elements.clone()],
                target: &target[elements],
            });
        });
    });
    sums.iter().sum()
}

/// Writes `factor · (x - target)`, rounded to the elements' type.
///
/// # Panics
/// If lengths or types do not match.
pub fn gradient(cpu: Cpu, x: Slice, target: Slice, factor: f64, dx: SliceMut) {
    assert!(x.len() == target.len() && x.len() == dx.shared().len());
    with_type!(x, T => {
        let (x, target) = (T::of_slice(x), T::of_slice(target));
        let factor = <T as Element>::Acc::of(factor);
        cpu.for_rows(T::of_slice_mut(dx), 1, |start, dx| {
            let (x, target) = (&x[start..][..dx.len()], &target[start..][..dx.len()]);
            cpu.isa.enter(Loop(|| {
                for (dx, (x, target)) in dx.iter_mut().zip(x.iter().zip(target)) {
                    *dx = T::narrow((x.widen() - target.widen()) * factor);
                }
            }));
        });
    });
}

struct SquaredErrorTask<'a, T> {
    x: &'a [T],
    target: &'a [T],
}

impl<T: Element<Acc: Into<f64>>> LevelTask<f64> for SquaredErrorTask<'_, T> {
    #[inline(always)]
    fn compute<L: Level>(self, _: L) -> f64 {
        sum_pairs(self.x, self.target, |x, target| {
            let difference: f64 = (x.widen() - target.widen()).into();
            difference * difference
        })
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::{reference::alone, vectors::Isa};

    fn numbers<T: Element>(n: usize, seed: f32) -> Vec<T> {
        let number = |i: usize| ((i as f32 + seed) * 0.7).sin() * 3.0;
        (0..n)
            .map(|i| T::narrow(<T::Acc as Real>::of(f64::from(number(i)))))
            .collect()
    }

    /// Compares with f64, for values whose differences are rounded by `unit`.
    fn check<T: Element<Acc: Into<f64>>>(unit: f64)
    where
        for<'a> Slice<'a>: From<&'a [T]>,
        for<'a> SliceMut<'a>: From<&'a mut [T]>,
    {
        for n in [
            1,
            2,
            15,
            16,
            17,
            33,
            PIECE - 1,
            PIECE,
            PIECE + 1,
            5 * PIECE + 3,
        ] {
            let (x, target) = (numbers::<T>(n, 0.0), numbers::<T>(n, 0.3));
            let wide = |x: &T| -> f64 { x.widen().into() };
            let differences = x.iter().zip(&target).map(|(x, y)| wide(x) - wide(y));
            let differences: Vec<f64> = differences.collect();
            let expected: f64 = differences.iter().map(|d| d * d).sum();
            for isa in Isa::levels() {
                let cpu = Cpu { isa, ..alone() };
                let found = sum(cpu, (&x[..]).into(), (&target[..]).into());
                let allowed = 1e-6 * expected;
                assert!(
                    (found - expected).abs() <= allowed,
                    "{n}: {found} {expected}"
                );
                let threaded = sum(cpu.on(3), (&x[..]).into(), (&target[..]).into());
                assert_eq!(found.to_bits(), threaded.to_bits(), "{n}");
                let mut dx = numbers::<T>(n, 9.0);
                gradient(
                    cpu,
                    (&x[..]).into(),
                    (&target[..]).into(),
                    0.375,
                    (&mut dx[..]).into(),
                );
                for (dx, difference) in dx.iter().zip(&differences) {
                    let allowed = 2.0 * unit * difference.abs() + 1e-7;
                    assert!((wide(dx) - 0.375 * difference).abs() <= allowed, "{n}");
                }
            }
        }
    }

    #[test]
    fn squares_are_summed_as_in_f64_at_lengths_around_pieces_with_the_same_bits_on_any_threads() {
        check::<f32>(f64::from(f32::EPSILON));
        check::<f64>(f64::EPSILON);
        check::<f16>(f64::from(f16::EPSILON));
        check::<bf16>(f64::from(bf16::EPSILON));
    }
}
