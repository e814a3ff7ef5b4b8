//! Element-wise activations: each a value and its slope, and the loops that run them over slices.

mod pieces;
mod smooth;
mod straight;

use std::marker::PhantomData;

use super::{Element, Real, Routine, fused::FusedF32, isa::Isa, parallel};

pub use pieces::{GELU, GELU_SLOPE, GELU_TANH, GELU_TANH_SLOPE, Pieces};
pub use smooth::*;
pub use straight::*;

/// Elements per piece of work: 32 kB of f32, the size of a first-level cache.
const CHUNK: usize = 8192;

/// Elements that are widened and computed at a time: they stay in the first cache.
const BLOCK: usize = 512;

/// A function of one number as a type. The compiler leaves a closure as long as GELU's slope outside the loop that calls
/// it, and so without the loop's instructions, some ten times slower; a method it can be told to take in.
pub trait Function {
    /// At `x`; to be `#[inline(always)]`.
    fn at<R: Real>(x: R) -> R;

    /// The same in f32, where it is known by pieces.
    fn pieces() -> Option<&'static Pieces> {
        None
    }
}

/// Numbers that functions are computed in.
pub trait Computed: Real {
    /// `x = F(x)` of each, on the calling thread.
    fn apply<F: Function>(isa: Isa, values: &mut [Self]);
}

impl Computed for f32 {
    fn apply<F: Function>(isa: Isa, values: &mut [f32]) {
        match F::pieces() {
            Some(pieces) => pieces.apply(isa, values),
            None if isa.has_fused() => isa.enter(Apply::<_, F>::to(FusedF32::of_slice(values))),
            None => isa.enter(Apply::<_, F>::to(values)),
        }
    }
}

impl Computed for f64 {
    fn apply<F: Function>(isa: Isa, values: &mut [f64]) {
        isa.enter(Apply::<_, F>::to(values));
    }
}

/// [`sigmoid`].
pub struct Sigmoid;

impl Function for Sigmoid {
    #[inline(always)]
    fn at<R: Real>(x: R) -> R {
        sigmoid(x)
    }
}

/// `y = F(x)`.
pub fn forward<T: Element<Acc: Computed>, F: Function>(isa: Isa, x: &[T], y: &mut [T]) {
    assert_eq!(x.len(), y.len());
    parallel::for_chunks(y, CHUNK, |start, y| {
        let mut block = [T::Acc::ZERO; BLOCK];
        let x = x[start..][..y.len()].chunks(BLOCK);
        for (x, y) in x.zip(y.chunks_mut(BLOCK)) {
            let values = computed::<T, F>(isa, x, &mut block);
            isa.enter(Narrow {
                from: values,
                to: y,
            });
        }
    });
}

/// Makes `dy` the gradient of `x`: `dy · F(x)`, for F the slope.
pub fn backward<T: Element<Acc: Computed>, F: Function>(isa: Isa, x: &[T], gradient: &mut [T]) {
    assert_eq!(x.len(), gradient.len());
    parallel::for_chunks(gradient, CHUNK, |start, gradient| {
        let mut block = [T::Acc::ZERO; BLOCK];
        let x = x[start..][..gradient.len()].chunks(BLOCK);
        for (x, gradient) in x.zip(gradient.chunks_mut(BLOCK)) {
            let slopes = computed::<T, F>(isa, x, &mut block);
            isa.enter(MultiplyBy { slopes, gradient });
        }
    });
}

/// `F(x)` at the front of a block.
fn computed<'a, T: Element<Acc: Computed>, F: Function>(
    isa: Isa,
    x: &[T],
    block: &'a mut [T::Acc; BLOCK],
) -> &'a [T::Acc] {
    let values = &mut block[..x.len()];
    isa.enter(Widen {
        from: x,
        to: values,
    });
    T::Acc::apply::<F>(isa, values);
    values
}

struct Apply<'a, T, F> {
    values: &'a mut [T],
    function: PhantomData<F>,
}

impl<'a, T, F> Apply<'a, T, F> {
    fn to(values: &'a mut [T]) -> Self {
        Self {
            values,
            function: PhantomData,
        }
    }
}

impl<T: Real, F: Function> Routine for Apply<'_, T, F> {
    #[inline(always)]
    fn run(self) {
        for x in self.values {
            *x = F::at(*x);
        }
    }
}

struct Widen<'a, T: Element> {
    from: &'a [T],
    to: &'a mut [T::Acc],
}

impl<T: Element> Routine for Widen<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = from.widen();
        }
    }
}

struct Narrow<'a, T: Element> {
    from: &'a [T::Acc],
    to: &'a mut [T],
}

impl<T: Element> Routine for Narrow<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (to, &from) in self.to.iter_mut().zip(self.from) {
            *to = T::narrow(from);
        }
    }
}

struct MultiplyBy<'a, T: Element> {
    slopes: &'a [T::Acc],
    gradient: &'a mut [T],
}

impl<T: Element> Routine for MultiplyBy<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (dy, &slope) in self.gradient.iter_mut().zip(self.slopes) {
            *dy = T::narrow(dy.widen() * slope);
        }
    }
}

#[cfg(test)]
mod tests;
