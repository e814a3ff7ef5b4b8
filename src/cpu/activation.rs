//! Element-wise activations: each as a value and a slope, and the loops that apply them to slices.
//!
//! Each is a generic function over [`Real`] in [`smooth`] or [`straight`]; f32 GELUs are tabulated
//! instead ([`pieces`]).

mod pieces;
mod smooth;
mod straight;

use std::marker::PhantomData;

use super::{Element, Real, Routine, fused::FusedF32, isa::Isa, parallel};

pub use pieces::{GELU, GELU_SLOPE, GELU_TANH, GELU_TANH_SLOPE, Pieces};
pub use smooth::*;
pub use straight::*;

/// Elements per piece of work: 32 KiB of f32, the size of a first-level cache.
const CHUNK: usize = 8192;

/// Elements that are widened and computed at a time, so that they stay in the first-level cache.
const BLOCK: usize = 512;

/// A function of one number, as a type. The compiler would not inline a closure as long as GELU's slope into
/// the loop that calls it, and so compile it without the level's instructions, some ten times slower; a method
/// can be forced inline.
pub trait Function {
    /// The value at `x`; implementations are `#[inline(always)]`.
    fn at<R: Real>(x: R) -> R;

    /// The same function in f32 as piecewise polynomials, if there are any.
    fn pieces() -> Option<&'static Pieces> {
        None
    }
}

/// Number types that functions are computed in: f32 and f64.
pub trait Computed: Real {
    /// `x = F(x)` for each value, on the calling thread.
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

/// Turns the gradient of the value into that of `x`: `gradient = gradient · F(x)`, where `F` is the slope.
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

/// `F(x)` of up to a block of elements, in the front of `block`.
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
