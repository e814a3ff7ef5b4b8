//! Comparing a run with PyTorch: reads a fixture that PyTorch wrote, measures every tensor of ours
//! against it, and says where the first block goes astray.
//!
//! This module knows tensors and names, and no layer, so it cannot share a layer's mistake. There is
//! no second comparer in the crate: tests, examples and the command line all use this one.
//!
//! - [`Fixture`] is the file: input, mask, cotangent, and what PyTorch computed at every stage.
//! - [`Tolerance`] says how far from the truth a result may be. Nothing in it is typed in by hand.
//! - [`Comparer`] compares one tensor ([`Comparison`]) or a whole run ([`Report`]).
//!
//! ```no_run
//! # fn main() -> candle_blocks::Result<()> {
//! # let produced = std::collections::HashMap::new();
//! use candle_blocks::verify::{Fixture, verify};
//!
//! let fixture = Fixture::open("block.fixture.safetensors")?;
//! let report = verify(&fixture, &produced); // produced: stage name -> tensor of our run
//! println!("{report}");
//! assert!(report.passed);
//! # Ok(())
//! # }
//! ```

mod company;
mod compare;
mod comparison;
mod expected;
mod fixture;
mod json_float;
mod kept_rows;
mod names;
mod pair;
mod report;
mod tolerance;

use std::collections::HashMap;

use candle_core::Tensor;

pub use compare::Comparer;
pub use comparison::{Comparison, Outcome, Worst};
pub use expected::Expected;
pub use fixture::Fixture;
pub use kept_rows::KeptRows;
pub use report::{Report, Scope};
pub use tolerance::{Basis, Tolerance};

/// Compares one tensor with what PyTorch computed, at the precision of our tensor's own type.
///
/// Use [`Comparer`] where the arithmetic was coarser than the type that holds its result.
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

/// Compares a whole run with a fixture: every stage, and every gradient if the run produced any.
///
/// A stage that the fixture holds and the run did not produce is a failure; what the run produced
/// beyond the fixture is left alone. To insist on gradients, use [`Comparer::verify`] with
/// [`Scope::ForwardAndBackward`].
pub fn verify(fixture: &Fixture, produced: &HashMap<String, Tensor>) -> Report {
    let scope = if produced.keys().any(|name| names::is_gradient(name)) {
        Scope::ForwardAndBackward
    } else {
        Scope::Forward
    };
    Comparer::new().verify(fixture, produced, scope)
}
