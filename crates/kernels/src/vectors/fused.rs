//! f32 whose functions use fused multiply-adds, for instruction sets that have them.
//!
//! A polynomial then takes half the steps, with no larger error. Without the instruction `mul_add` calls the C
//! library, so this type is only for code that runs within an instruction set
//! ([`Level::HAS_FUSED`](super::level::Level::HAS_FUSED)).

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use bytemuck::{Pod, TransparentWrapper, Zeroable};

use crate::vectors::{Element, Real, inlined, math, math::Fused};

/// An f32 with the [`Fused`] versions of `exp`, `erf` and `tanh`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Pod, Zeroable, TransparentWrapper)]
#[repr(transparent)]
pub struct FusedF32(f32);

impl FusedF32 {
    /// Reinterprets a slice.
    pub fn of_slice(values: &mut [f32]) -> &mut [Self] {
        Self::wrap_slice_mut(values)
    }
}

macro_rules! as_f32_does {
    ($($trait:ident $method:ident)*) => {
        $(impl $trait for FusedF32 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self($trait::$method(self.0, other.0))
            }
        })*
    };
}
as_f32_does!(Add add Sub sub Mul mul Div div);

impl Neg for FusedF32 {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Self(-self.0)
    }
}

impl AddAssign for FusedF32 {
    #[inline(always)]
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Element for FusedF32 {
    type Acc = Self;
    type Wide = f64;
    const ZERO: Self = Self(0.0);
    inlined! {
        fn widen(self) -> Self { self }
        fn narrow(value: Self) -> Self { value }
        fn to_wide(self) -> f64 { self.0.into() }
        fn from_wide(value: f64) -> Self { Self(value as f32) }
    }
}

impl Real for FusedF32 {
    inlined! {
        fn of(value: f64) -> Self { Self(value as f32) }
        fn abs(self) -> Self { Self(self.0.abs()) }
        fn sqrt(self) -> Self { Self(self.0.sqrt()) }
        fn exp(self) -> Self { Self(math::exp::<Fused>(self.0)) }
        fn erf(self) -> Self { Self(math::erf::<Fused>(self.0)) }
        fn tanh(self) -> Self { Self(math::tanh::<Fused>(self.0)) }
        fn ln_1p(self) -> Self { Self(math::ln_1p(self.0)) }
    }
}
