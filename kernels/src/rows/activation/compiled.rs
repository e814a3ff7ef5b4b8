//! A function as a type that loops are compiled for.

use super::pieces::Pieces;
use crate::vectors::Real;

/// A function of one number, as a type. The compiler would not inline a closure as long as GELU's slope into
/// the loop that calls it, and so compile it without the level's instructions, some ten times slower; a method
/// can be forced inline.
pub trait Function: Copy {
    /// The value at `x`; implementations are `#[inline(always)]`.
    fn at<R: Real>(self, x: R) -> R;

    /// The same function in f32 as piecewise polynomials, if there are any.
    fn pieces() -> Option<&'static Pieces> {
        None
    }
}

/// What is done with a function.
pub trait WithFunction {
    /// Does it.
    fn with<F: Function>(self, function: F);
}
