//! Compares a run with PyTorch: reads a fixture that PyTorch wrote, compares every tensor with it, and reports the
//! first block that diverges.
//!
//! This module works with tensors and names and has no layers, so it cannot share a layer's mistake. Tests, examples
//! and the command line all use it. `trace` produces the tensors to compare.
//!
//! - [`Fixture`] is the file: input, mask, output gradient, and PyTorch's results at every stage.
//! - [`Tolerance`] is the allowed distance between a result and the exact one. It is derived from PyTorch's own
//!   error.
//! - [`Comparer`] compares one tensor ([`Comparison`]) or a whole run ([`Report`]).
//!
//! The example in `trace` compares a checkpoint with its fixture.

mod compare;
mod comparison;
mod epsilon;
mod expected;
mod fixture;
mod json_float;
mod kept_rows;
mod names;
mod pair;
mod peers;
mod report;
mod sizes;
mod tolerance;

use std::collections::HashMap;

use candle_core::Tensor;

pub use compare::Comparer;
#[doc(hidden)]
pub use comparison::Worst;
pub use comparison::{Comparison, Outcome};
pub use expected::Expected;
pub use fixture::Fixture;
#[doc(hidden)]
pub use kept_rows::KeptRows;
pub use report::Report;
#[doc(hidden)]
pub use report::Scope;
#[doc(hidden)]
pub use tolerance::Basis;
pub use tolerance::Tolerance;

/// Compares a tensor with PyTorch's result, at the precision of its dtype.
///
/// Use [`Comparer`] if the arithmetic was less precise than the result's dtype.
pub fn compare(
    name: &str,
    ours: &Tensor,
    expected: &Expected,
    kept: Option<&KeptRows>,
) -> Comparison {
    let mut comparer = Comparer::new();
    if let Some(rows) = kept {
        comparer = comparer.with_kept(rows);
    }
    comparer.compare(name, ours, expected)
}

/// Compares a run with a fixture: every stage, and every gradient if both have gradients.
///
/// A fixture's stage that the run did not produce is a failure. Tensors that are not in the fixture are ignored. To
/// require gradients, use [`Comparer::verify`] with [`Scope::ForwardAndBackward`].
pub fn verify(fixture: &Fixture, produced: &HashMap<String, Tensor>) -> Report {
    let was_backward = produced.keys().any(|name| names::is_gradient(name));
    let scope = if was_backward && !fixture.gradients().is_empty() {
        Scope::ForwardAndBackward
    } else {
        Scope::Forward
    };
    Comparer::new().verify(fixture, produced, scope)
}
