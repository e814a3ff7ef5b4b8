//! Loops that apply activations and their slopes to slices.

use super::{
    compiled::{Function, WithFunction},
    function::ActivationFunction,
};
use crate::cpu::Cpu;
use crate::vectors::{
    Element, Isa, Level, LevelTask, Loop, Real, Slice, SliceMut, Stored, fused::FusedF32, with_type,
};

/// Elements that are widened and computed at a time, so that they stay in the L1 cache.
const BLOCK: usize = 512;

impl ActivationFunction {
    /// Computes `y = f(x)` elementwise. `x` and `y` have one type.
    ///
    /// # Panics
    /// If lengths or types do not match.
    pub fn forward(self, cpu: Cpu, x: Slice, y: SliceMut) {
        with_type!(x, T => {
            let (x, y) = (T::of_slice(x), T::of_slice_mut(y));
            assert_eq!(x.len(), y.len());
            cpu.for_rows(y, 1, |start, y| {
                let x = x[start..][..y.len()].chunks(BLOCK);
                let mut block = [<T as Element>::Acc::ZERO; BLOCK];
                for (x, y) in x.zip(y.chunks_mut(BLOCK)) {
                    let values = &mut block[..x.len()];
                    widen(cpu.isa, x, values);
                    self.apply(cpu.isa, values);
                    cpu.isa.enter(Loop(|| {
                        for (y, &value) in y.iter_mut().zip(&*values) {
                            *y = T::narrow(value);
                        }
                    }));
                }
            });
        });
    }

    /// Converts the value's gradient to `x`'s gradient: `gradient = gradient · f'(x)`. Both have one type.
    ///
    /// # Panics
    /// If lengths or types do not match.
    pub fn backward(self, cpu: Cpu, x: Slice, gradient: SliceMut) {
        with_type!(x, T => {
            let (x, gradient) = (T::of_slice(x), T::of_slice_mut(gradient));
            assert_eq!(x.len(), gradient.len());
            cpu.for_rows(gradient, 1, |start, gradient| {
                let x = x[start..][..gradient.len()].chunks(BLOCK);
                let mut block = [<T as Element>::Acc::ZERO; BLOCK];
                for (x, gradient) in x.zip(gradient.chunks_mut(BLOCK)) {
                    let slopes = &mut block[..x.len()];
                    widen(cpu.isa, x, slopes);
                    self.with_slope(Apply { isa: cpu.isa, values: slopes });
                    cpu.isa.enter(Loop(|| {
                        for (dy, &slope) in gradient.iter_mut().zip(&*slopes) {
                            *dy = T::narrow(dy.widen() * slope);
                        }
                    }));
                }
            });
        });
    }

    /// Replaces each value by the function's value, on the calling thread.
    pub(crate) fn apply<T: Computed>(self, isa: Isa, values: &mut [T]) {
        if self != Self::Identity {
            self.with_value(Apply { isa, values });
        }
    }
}

/// Types in which functions are computed: f32 and f64.
pub(crate) trait Computed: Real {
    /// Computes `x = function(x)` for each value, on the calling thread.
    fn compute<F: Function>(isa: Isa, values: &mut [Self], function: F);
}

impl Computed for f32 {
    fn compute<F: Function>(isa: Isa, values: &mut [f32], function: F) {
        match F::pieces() {
            Some(pieces) => pieces.apply(isa, values),
            None => isa.enter(InVectors(values, function)),
        }
    }
}

impl Computed for f64 {
    // The f64 functions are library calls, which no instruction set changes.
    fn compute<F: Function>(_: Isa, values: &mut [f64], function: F) {
        for x in values {
            *x = function.at(*x);
        }
    }
}

struct Apply<'a, T> {
    isa: Isa,
    values: &'a mut [T],
}

impl<T: Computed> WithFunction for Apply<'_, T> {
    fn with<F: Function>(self, function: F) {
        T::compute(self.isa, self.values, function);
    }
}

struct InVectors<'a, F>(&'a mut [f32], F);

impl<F: Function> LevelTask for InVectors<'_, F> {
    #[inline(always)]
    fn compute<L: Level>(self, _: L) {
        let Self(values, function) = self;
        if L::HAS_FUSED {
            for x in FusedF32::of_slice(values) {
                *x = function.at(*x);
            }
        } else {
            for x in values {
                *x = function.at(*x);
            }
        }
    }
}

fn widen<T: Element>(isa: Isa, from: &[T], to: &mut [T::Acc]) {
    isa.enter(Loop(|| {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }));
}
