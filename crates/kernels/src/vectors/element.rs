//! Element types: storage types, and the types in which they are computed.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use half::{bf16, f16};

use crate::vectors::{Separate, math};

/// A storage type: f32, f64, f16 or bf16.
pub trait Element: Copy + PartialEq + Send + Sync + 'static {
    /// The type for arithmetic.
    type Acc: Real;
    /// The type for statistics and sums over many elements. Its rounding errors are invisible in a stored result.
    type Wide: Real;

    /// Positive zero.
    const ZERO: Self;

    /// Converts to [`Self::Acc`], exactly.
    fn widen(self) -> Self::Acc;

    /// Rounds to the stored type: to nearest, ties to even.
    fn narrow(value: Self::Acc) -> Self;

    /// Converts to [`Self::Wide`], exactly.
    fn to_wide(self) -> Self::Wide;

    /// Rounds to the stored type: to nearest, ties to even.
    fn from_wide(value: Self::Wide) -> Self;
}

/// A type for arithmetic: f32 or f64, with the functions that the kernels need.
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
    /// Rounds a constant to the type.
    fn of(value: f64) -> Self;
    /// Returns `|x|`.
    fn abs(self) -> Self;
    /// Returns `√x`, correctly rounded.
    fn sqrt(self) -> Self;
    /// Returns `eˣ`.
    fn exp(self) -> Self;
    /// Returns `2/√π ∫₀ˣ exp(-t²) dt`.
    fn erf(self) -> Self;
    /// Returns the hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Returns `ln(1 + x)` for `x >= 0`, without cancellation near 0.
    fn ln_1p(self) -> Self;

    /// Returns the smaller value, or NaN if `self` is NaN.
    #[inline(always)]
    fn at_most(self, limit: Self) -> Self {
        if self > limit { limit } else { self }
    }

    /// Returns the larger value, or NaN if `self` is NaN.
    #[inline(always)]
    fn at_least(self, limit: Self) -> Self {
        if self < limit { limit } else { self }
    }
}

/// Functions that are inlined into code compiled for an instruction set. The macro adds `#[inline(always)]` to each.
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
        fn ln_1p(self) -> Self { math::ln_1p(self) }
    }
}

// `libm` rather than `std`, which calls the system's library, whose bits differ between platforms.
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

/// Like `f16::to_f32`, but without its run-time CPU check for each element, so that loops vectorize.
#[inline(always)]
fn f16_to_f32(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    // The exponent biases differ by 112. The product is exact, also for subnormal values.
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
    fn every_f16_widens_to_its_exact_f32() {
        for bits in 0..=u16::MAX {
            let x = f16::from_bits(bits);
            assert_eq!(x.widen().to_bits(), x.to_f32().to_bits(), "{bits:#x}");
        }
    }
}
