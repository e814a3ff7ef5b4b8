//! A scalar function as a type, for loops that are compiled for it.

use super::pieces::Pieces;
use crate::vectors::Real;

/// A scalar function as a type. The compiler would not inline a closure as long as GELU's slope into its loop, and
/// would therefore compile it without the instruction set, about ten times slower. A method can be forced inline.
pub trait Function: Copy {
    /// Returns the value at `x`. Implementations are `#[inline(always)]`.
    fn at<R: Real>(self, x: R) -> R;

    /// Returns the same function in f32 as piecewise polynomials, if any.
    fn pieces() -> Option<&'static Pieces> {
        None
    }
}

/// A callback that takes a function.
pub trait WithFunction {
    /// Runs the callback.
    fn with<F: Function>(self, function: F);
}
