//! Element-wise activations: each a value and its slope, and the loops that run them over slices.

pub mod pieces;
mod smooth;
mod straight;

use std::marker::PhantomData;

use super::{Element, Real, Routine, fused::FusedF32, isa::Isa, parallel};

pub use smooth::*;
pub use straight::*;

/// Elements per piece of work: 32 kB of f32, the size of a first-level cache.
const CHUNK: usize = 8192;

/// Elements widened at a time: in loops of its own, the conversion of f16, which is a call without
/// the F16C target feature, does not keep the mathematics from vectorising.
const BLOCK: usize = 64;

/// `y = value(x)`.
pub fn forward<T: Element>(
    isa: Isa,
    x: &[T],
    y: &mut [T],
    value: impl Fn(T::Acc) -> T::Acc + Send + Sync,
) {
    assert_eq!(x.len(), y.len());
    parallel::for_chunks(y, CHUNK, |start, y| {
        let x = &x[start..][..y.len()];
        isa.enter(Forward {
            x,
            y,
            value: &value,
        });
    });
}

/// `x = value(x)`, on the calling thread; with `fused`, the same function, where the level has the instructions.
pub fn apply(
    isa: Isa,
    values: &mut [f32],
    value: impl Fn(f32) -> f32,
    fused: impl Fn(FusedF32) -> FusedF32,
) {
    if isa.has_fused() {
        isa.enter(Apply {
            values: FusedF32::of_slice(values),
            value: fused,
        });
    } else {
        isa.enter(Apply { values, value });
    }
}

/// A slope as a type. The compiler leaves a closure as long as GELU's slope outside the loop that calls it, and so
/// without the loop's instructions, some ten times slower; a method it can be told to take in.
pub trait Slope {
    /// At `x`; to be `#[inline(always)]`.
    fn at<R: Real>(x: R) -> R;
}

/// Makes `dy` the gradient of `x`: `dy · slope(x)`.
pub fn backward<T: Element, S: Slope>(isa: Isa, x: &[T], gradient: &mut [T]) {
    assert_eq!(x.len(), gradient.len());
    parallel::for_chunks(gradient, CHUNK, |start, gradient| {
        let x = &x[start..][..gradient.len()];
        isa.enter(Backward::<T, S> {
            x,
            gradient,
            slope: PhantomData,
        });
    });
}

struct Forward<'a, T, F> {
    x: &'a [T],
    y: &'a mut [T],
    value: F,
}

impl<T: Element, F: Fn(T::Acc) -> T::Acc> Routine for Forward<'_, T, F> {
    #[inline(always)]
    fn run(self) {
        let mut block = [T::Acc::ZERO; BLOCK];
        for (x, y) in self.x.chunks(BLOCK).zip(self.y.chunks_mut(BLOCK)) {
            widen(x, &mut block);
            for x in &mut block {
                *x = (self.value)(*x);
            }
            narrow(&block, y);
        }
    }
}

struct Apply<'a, T, F> {
    values: &'a mut [T],
    value: F,
}

impl<T: Real, F: Fn(T) -> T> Routine for Apply<'_, T, F> {
    #[inline(always)]
    fn run(self) {
        for x in self.values {
            *x = (self.value)(*x);
        }
    }
}

struct Backward<'a, T, S> {
    x: &'a [T],
    /// Of the value, then of `x`.
    gradient: &'a mut [T],
    slope: PhantomData<S>,
}

impl<T: Element, S: Slope> Routine for Backward<'_, T, S> {
    #[inline(always)]
    fn run(self) {
        let mut block = [T::Acc::ZERO; BLOCK];
        let mut cotangents = [T::Acc::ZERO; BLOCK];
        for (x, gradient) in self.x.chunks(BLOCK).zip(self.gradient.chunks_mut(BLOCK)) {
            widen(x, &mut block);
            widen(gradient, &mut cotangents);
            for (x, &dy) in block.iter_mut().zip(&cotangents) {
                *x = dy * S::at(*x);
            }
            narrow(&block, gradient);
        }
    }
}

/// Widens to the front of a block; what the rest holds is computed along and not written.
#[inline(always)]
fn widen<T: Element>(from: &[T], to: &mut [T::Acc; BLOCK]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.widen();
    }
}

#[inline(always)]
fn narrow<T: Element>(from: &[T::Acc; BLOCK], to: &mut [T]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = T::narrow(from);
    }
}

#[cfg(test)]
mod tests;
