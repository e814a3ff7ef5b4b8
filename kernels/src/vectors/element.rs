//! The number types: what an element is stored as, and what it is computed in.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use half::{bf16, f16};

use crate::vectors::{Separate, math};

/// A stored number: f32, f64, f16 or bf16.
pub trait Element: Copy + PartialEq + Send + Sync + 'static {
    /// The type that it is computed in.
    type Acc: Real;
    /// The type of statistics and of sums over many elements: one whose rounding errors do not show in a stored
    /// result.
    type Wide: Real;

    /// Positive zero.
    const ZERO: Self;

    /// The number as [`Self::Acc`]; exact.
    fn widen(self) -> Self::Acc;

    /// Rounds to the stored type: to nearest, ties to even.
    fn narrow(value: Self::Acc) -> Self;

    /// The number as [`Self::Wide`]; exact.
    fn to_wide(self) -> Self::Wide;

    /// Rounds to the stored type: to nearest, ties to even.
    fn from_wide(value: Self::Wide) -> Self;
}

/// A type to compute in: f32 or f64, with the functions that the kernels need.
pub trait Real:
    Element<Acc = Self>
    + bytemuck::Pod
    + PartialOrd
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// A constant, rounded to the type.
    fn of(value: f64) -> Self;
    /// `|x|`.
    fn abs(self) -> Self;
    /// `√x`, correctly rounded.
    fn sqrt(self) -> Self;
    /// `eˣ`.
    fn exp(self) -> Self;
    /// `2/√π ∫₀ˣ exp(-t²) dt`.
    fn erf(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// `ln(1 + x)` without cancellation near 0.
    fn ln_1p(self) -> Self;

    /// The smaller of the two; NaN where `self` is NaN.
    #[inline(always)]
    fn at_most(self, limit: Self) -> Self {
        if self > limit { limit } else { self }
    }

    /// The larger of the two; NaN where `self` is NaN.
    #[inline(always)]
    fn at_least(self, limit: Self) -> Self {
        if self < limit { limit } else { self }
    }
}

/// Functions that are inlined into code compiled for a level, without the attribute that each of them needs for it.
macro_rules! inlined {
    ($(
        $(#[$doc:meta])*
        $visibility:vis fn $name:ident$(<$type:ident: $bound:ident>)?($($arguments:tt)*) -> $out:ty $body:block
    )*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            $visibility fn $name$(<$type: $bound>)?($($arguments)*) -> $out $body
        )*
    };
}
pub(crate) use inlined;

impl Real for f32 {
    inlined! {
        fn of(value: f64) -> Self { value as f32 }
        fn abs(self) -> Self { f32::abs(self) }
        fn sqrt(self) -> Self { f32::sqrt(self) }
        fn exp(self) -> Self { math::exp::<Separate>(self) }
        fn erf(self) -> Self { math::erf::<Separate>(self) }
        fn tanh(self) -> Self { math::tanh::<Separate>(self) }
    }
    // Only `sqrtsoftplus` uses it, on router scores: a few numbers per token.
    fn ln_1p(self) -> Self {
        libm::log1pf(self)
    }
}

// `libm` and not `std`, which calls the system's library, whose bits differ between platforms.
impl Real for f64 {
    inlined! {
        fn of(value: f64) -> Self { value }
        fn abs(self) -> Self { f64::abs(self) }
        fn sqrt(self) -> Self { f64::sqrt(self) }
    }
    fn exp(self) -> Self {
        libm::exp(self)
    }
    fn erf(self) -> Self {
        libm::erf(self)
    }
    fn tanh(self) -> Self {
        libm::tanh(self)
    }
    fn ln_1p(self) -> Self {
        libm::log1p(self)
    }
}

macro_rules! computed_in_itself {
    ($type:ty) => {
        impl Element for $type {
            type Acc = Self;
            type Wide = f64;
            const ZERO: Self = 0.0;
            inlined! {
                fn widen(self) -> Self { self }
                fn narrow(value: Self) -> Self { value }
                fn to_wide(self) -> f64 { self.into() }
                fn from_wide(value: f64) -> Self { value as $type }
            }
        }
    };
}

macro_rules! computed_in_f32 {
    ($type:ty, $to_f32:path) => {
        impl Element for $type {
            type Acc = f32;
            type Wide = f32;
            const ZERO: Self = <$type>::ZERO;
            inlined! {
                fn widen(self) -> f32 { $to_f32(self) }
                fn narrow(value: f32) -> Self { Self::from_f32(value) }
                fn to_wide(self) -> f32 { self.widen() }
                fn from_wide(value: f32) -> Self { Self::from_f32(value) }
            }
        }
    };
}

computed_in_itself!(f32);
computed_in_itself!(f64);
computed_in_f32!(f16, f16_to_f32);
computed_in_f32!(bf16, bf16::to_f32);

/// As `f16::to_f32`, but without its run-time check of CPU features at each number, so that loops vectorise.
#[inline(always)]
fn f16_to_f32(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    // The exponent biases differ by 112. The product is exact, also for subnormal numbers.
    let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let quiet = if bits & 0x3ff == 0 { 0 } else { 1 << 22 };
    let other = magnitude | 0xff << 23 | quiet;
    let is_finite = bits & 0x7c00 != 0x7c00;
    let magnitude = if is_finite { finite.to_bits() } else { other };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_widens_to_the_f32_of_its_value() {
        for bits in 0..=u16::MAX {
            let x = f16::from_bits(bits);
            assert_eq!(x.widen().to_bits(), x.to_f32().to_bits(), "{bits:#x}");
        }
    }
}
