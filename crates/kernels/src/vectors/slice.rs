//! Slices whose element type is known at run time, for the kernels' arguments.

use half::{bf16, f16};

use super::Element;

/// A slice to read.
#[derive(Clone, Copy, Debug)]
pub enum Slice<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Double precision.
    F64(&'a [f64]),
    /// IEEE half precision.
    F16(&'a [f16]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

/// A slice to write.
#[derive(Debug)]
pub enum SliceMut<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Double precision.
    F64(&'a mut [f64]),
    /// IEEE half precision.
    F16(&'a mut [f16]),
    /// bfloat16.
    Bf16(&'a mut [bf16]),
}

/// An element type that slices support.
pub trait Stored: Element {
    /// Returns a slice's elements.
    ///
    /// # Panics
    /// If the slice has another type.
    fn of_slice(slice: Slice<'_>) -> &[Self];

    /// Returns a slice's elements, mutably.
    ///
    /// # Panics
    /// If the slice has another type.
    fn of_slice_mut(slice: SliceMut<'_>) -> &mut [Self];

    /// Wraps elements to read.
    fn slice(numbers: &[Self]) -> Slice<'_>;

    /// Wraps elements to write.
    fn slice_mut(numbers: &mut [Self]) -> SliceMut<'_>;
}

macro_rules! stored {
    ($($type:ident $kind:ident)*) => {
        $(
            impl Stored for $type {
                fn of_slice(slice: Slice<'_>) -> &[Self] {
                    match slice {
                        Slice::$kind(numbers) => numbers,
                        other => panic!("a slice has type {}, expected {}", other.type_name(), stringify!($type)),
                    }
                }

                fn of_slice_mut(slice: SliceMut<'_>) -> &mut [Self] {
                    match slice {
                        SliceMut::$kind(numbers) => numbers,
                        other => panic!(
                            "a slice has type {}, expected {}",
                            other.shared().type_name(),
                            stringify!($type)
                        ),
                    }
                }

                fn slice(numbers: &[Self]) -> Slice<'_> {
                    Slice::$kind(numbers)
                }

                fn slice_mut(numbers: &mut [Self]) -> SliceMut<'_> {
                    SliceMut::$kind(numbers)
                }
            }

            impl<'a> From<&'a [$type]> for Slice<'a> {
                fn from(numbers: &'a [$type]) -> Self {
                    Self::$kind(numbers)
                }
            }

            impl<'a> From<&'a mut [$type]> for SliceMut<'a> {
                fn from(numbers: &'a mut [$type]) -> Self {
                    Self::$kind(numbers)
                }
            }
        )*

        impl<'a> Slice<'a> {
            /// Returns the element count.
            pub fn len(&self) -> usize {
                match self {
                    $(Self::$kind(numbers) => numbers.len(),)*
                }
            }

            /// Returns the elements in a range.
            pub fn part(&self, range: std::ops::Range<usize>) -> Self {
                match self {
                    $(Self::$kind(numbers) => Self::$kind(&numbers[range]),)*
                }
            }

            fn type_name(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => stringify!($type),)*
                }
            }
        }

        impl SliceMut<'_> {
            /// Returns the same elements, to read.
            pub fn shared(&self) -> Slice<'_> {
                match self {
                    $(Self::$kind(numbers) => Slice::$kind(numbers),)*
                }
            }

            /// Returns the same elements, to write, with a shorter lifetime.
            pub fn reborrow(&mut self) -> SliceMut<'_> {
                match self {
                    $(Self::$kind(numbers) => SliceMut::$kind(numbers),)*
                }
            }
        }
    };
}

stored!(f32 F32  f64 F64  f16 F16  bf16 Bf16);

impl Slice<'_> {
    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Runs `$body` with `$T` set to a slice's element type.
macro_rules! with_type {
    ($slice:expr, $T:ident => $body:expr) => {
        match $slice {
            $crate::vectors::slice::Slice::F32(_) => {
                type $T = f32;
                $body
            }
            $crate::vectors::slice::Slice::F64(_) => {
                type $T = f64;
                $body
            }
            $crate::vectors::slice::Slice::F16(_) => {
                type $T = half::f16;
                $body
            }
            $crate::vectors::slice::Slice::Bf16(_) => {
                type $T = half::bf16;
                $body
            }
        }
    };
}
pub(crate) use with_type;
