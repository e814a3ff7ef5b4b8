//! Cross-entropy for rows of logits with one class each, forward and backward.
//!
//! A row's loss is `ln Σ exp(x - max) - (x[class] - max)`. Nothing as large as the logits is kept: the backward pass
//! recomputes the probabilities, which takes less time than reading them from memory.

use crate::cpu::{Cpu, PIECE};
use crate::threads::{Shared, parallel};
use crate::vectors::{
    Element, Level, LevelTask, Real, Slice, SliceMut, Stored, max, update_and_sum, with_type,
};

/// Writes each row's loss, 0 for rows without a class.
///
/// # Panics
/// If lengths do not match.
pub fn losses(cpu: Cpu, x: Slice, classes: &[Option<usize>], losses: &mut [f64]) {
    assert_eq!(classes.len(), losses.len());
    let width = x.len() / classes.len().max(1);
    let losses = Shared::new(losses);
    for_rows(cpu, classes.len(), width, |rows| {
        // SAFETY: `for_rows` visits each row once.
        let losses = unsafe { losses.range(rows.clone()) };
        let classes = &classes[rows.clone()];
        with_type!(x, T => cpu.isa.enter(Losses {
            x: &T::of_slice(x)[rows.start * width..rows.end * width],
            classes,
            losses,
        }));
    });
}

/// Writes `x`'s gradient: `factor · (probability - [is the row's class])`, 0 in rows without a class.
///
/// # Panics
/// If lengths or types do not match.
pub fn gradient(cpu: Cpu, x: Slice, classes: &[Option<usize>], factor: f64, dx: SliceMut) {
    with_type!(x, T => {
        let (x, dx) = (T::of_slice(x), T::of_slice_mut(dx));
        assert_eq!(x.len(), dx.len());
        let width = x.len() / classes.len().max(1);
        let dx = Shared::new(dx);
        for_rows(cpu, classes.len(), width, |rows| {
            let elements = rows.start * width..rows.end * width;
            // SAFETY: `for_rows` visits each row once.
            let dx = unsafe { dx.range(elements.clone()) };
            cpu.isa.enter(Gradient {
                x: &x[elements],
                classes: &classes[rows],
                factor: <T as Element>::Acc::of(factor),
                dx,
            });
        });
    });
}

/// Calls `work` with row ranges. Each row is in exactly one range.
fn for_rows(cpu: Cpu, n_rows: usize, width: usize, work: impl Fn(std::ops::Range<usize>) + Sync) {
    if width == 0 {
        return;
    }
    let rows = (PIECE / width).max(1);
    let threads = cpu.for_elements(n_rows * width).threads;
    parallel::for_tasks(threads, n_rows.div_ceil(rows), |task| {
        work(task * rows..n_rows.min((task + 1) * rows));
    });
}

struct Losses<'a, T> {
    x: &'a [T],
    classes: &'a [Option<usize>],
    losses: &'a mut [f64],
}

impl<T: Element<Acc: Into<f64>>> LevelTask for Losses<'_, T> {
    #[inline(always)]
    fn compute<L: Level>(self, _: L) {
        let width = self.x.len() / self.classes.len();
        let mut exponentials = vec![T::Acc::ZERO; width];
        let rows = self.x.chunks_exact(width).zip(self.classes);
        for ((x, class), loss) in rows.zip(self.losses) {
            *loss = match *class {
                Some(class) => {
                    let (largest, total) = exponentiate(x, &mut exponentials);
                    let shifted: f64 = (x[class].widen() - largest).into();
                    libm::log(total.into()) - shifted
                }
                None => 0.0,
            };
        }
    }
}

struct Gradient<'a, T: Element> {
    x: &'a [T],
    classes: &'a [Option<usize>],
    factor: T::Acc,
    dx: &'a mut [T],
}

impl<T: Element> LevelTask for Gradient<'_, T> {
    #[inline(always)]
    fn compute<L: Level>(self, _: L) {
        let width = self.x.len() / self.classes.len();
        let mut exponentials = vec![T::Acc::ZERO; width];
        let rows = self.x.chunks_exact(width).zip(self.classes);
        for ((x, class), dx) in rows.zip(self.dx.chunks_exact_mut(width)) {
            let Some(class) = *class else {
                dx.fill(T::ZERO);
                continue;
            };
            let (_, total) = exponentiate(x, &mut exponentials);
            for (dx, &e) in dx.iter_mut().zip(&exponentials) {
                *dx = T::narrow(e / total * self.factor);
            }
            let probability = exponentials[class] / total;
            dx[class] = T::narrow((probability - T::Acc::of(1.0)) * self.factor);
        }
    }
}

/// Writes `exp(x - max)` elementwise, and returns the maximum and the sum.
#[inline(always)]
fn exponentiate<T: Element>(x: &[T], exponentials: &mut [T::Acc]) -> (T::Acc, T::Acc) {
    for (e, x) in exponentials.iter_mut().zip(x) {
        *e = x.widen();
    }
    let largest = max(exponentials);
    let total = update_and_sum(exponentials, |x| (x - largest).exp(), |e| e);
    (largest, total)
}
