//! Compares a whole run with a fixture: every stage in execution order, and the first one that diverges.

use std::collections::HashMap;
use std::fmt;

use candle_core::Tensor;
use serde::Serialize;

use crate::error::escape::Escaped;

use super::compare::Comparer;
use super::comparison::{Comparison, Outcome, Worst};
use super::expected::Expected;
use super::fixture::Fixture;
use super::names;
use super::peers::{Peers, peers};
use super::tolerance::Basis;

/// The fixture's tensors that a run must produce. Pass them to [`Comparer::verify`](crate::verify::Comparer::verify).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every stage. Gradients are listed as not compared.
    Forward,
    /// Every stage and every gradient.
    ForwardAndBackward,
}

/// The comparisons for a whole run. `Display` prints them as a table with a verdict.
/// [`Comparer::verify`](crate::verify::Comparer::verify) returns them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
#[must_use]
pub struct Report {
    /// True if there was something to compare and all tensors agree with PyTorch.
    pub passed: bool,
    /// The first tensor, in execution order, that does not agree: the cause is there or just before.
    pub first_divergence: Option<String>,
    /// The stages' comparisons in execution order, then the gradients'.
    pub comparisons: Vec<Comparison>,
    /// The fixture's results that were not compared: gradients in a forward run, and names that are neither a stage
    /// nor a gradient.
    pub not_compared: Vec<String>,
}

impl Comparer<'_> {
    /// Compares a whole run with a fixture, in the rows that the fixture's mask keeps (or the rows from
    /// [`Comparer::with_kept`]).
    ///
    /// Fails for a tensor that the scope requires and the run did not produce, and for a fixture without gradients
    /// if the scope requires them. Tensors that are not in the fixture are ignored.
    pub fn verify(
        &self,
        fixture: &Fixture,
        produced: &HashMap<String, Tensor>,
        scope: Scope,
    ) -> Report {
        let mut comparer = *self;
        if let (None, Some(rows)) = (self.kept(), fixture.kept_rows()) {
            comparer = comparer.with_kept(rows);
        }
        let mut not_compared = fixture.unknown().to_vec();
        let gradients = match scope {
            Scope::ForwardAndBackward => fixture.gradients(),
            Scope::Forward => {
                not_compared.extend(fixture.gradients().iter().map(|(name, _)| name.clone()));
                &[]
            }
        };
        let lacks_gradients = scope == Scope::ForwardAndBackward && gradients.is_empty();
        let stages = fixture.stages().iter();
        let stages = stages.map(|stage| comparer.compare_produced(None, stage, produced));
        let gradients = comparer.compare_gradients(gradients, produced);
        let comparisons: Vec<Comparison> = stages.chain(gradients).collect();
        let first_divergence = comparisons.iter().find(|comparison| !comparison.passed());
        Report {
            passed: first_divergence.is_none() && !comparisons.is_empty() && !lacks_gradients,
            first_divergence: first_divergence.map(|comparison| comparison.name.clone()),
            comparisons,
            not_compared,
        }
    }

    /// Compares the gradients of one run, each together with the others.
    #[doc(hidden)]
    pub fn compare_gradients(
        &self,
        gradients: &[(String, Expected)],
        produced: &HashMap<String, Tensor>,
    ) -> Vec<Comparison> {
        let with_peers = peers(gradients, self.kept()).into_iter().zip(gradients);
        let compare = |(peers, of)| self.compare_produced(Some(peers), of, produced);
        with_peers.map(compare).collect()
    }

    fn compare_produced(
        &self,
        peers: Option<Peers>,
        (name, expected): &(String, Expected),
        produced: &HashMap<String, Tensor>,
    ) -> Comparison {
        match produced.get(name) {
            Some(ours) => self.compare_among(peers, name, ours, expected),
            None => Comparison::missing(name, expected),
        }
    }
}

/// Prints a table of all comparisons, the fault in each failed one, and the verdict.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_table(f, &self.comparisons)?;
        for comparison in &self.comparisons {
            if let Some(fault) = fault(comparison) {
                let fault = format_args!("{}: {fault}", comparison.name);
                writeln!(f, "{}", Escaped(fault))?;
            }
        }
        if !self.not_compared.is_empty() {
            let names = summary(&self.not_compared);
            writeln!(f, "not compared: {}", Escaped(names))?;
        }
        let n = self.comparisons.len();
        let n_failed = self.comparisons.iter().filter(|c| !c.passed()).count();
        match &self.first_divergence {
            Some(name) => {
                let name = Escaped(name);
                write!(f, "FAIL: {n_failed} of {n} tensors; the first is {name}")
            }
            None if n == 0 => write!(f, "FAIL: the fixture contains nothing to compare with"),
            None if !self.passed => write!(
                f,
                "FAIL: the {n} stages are within tolerance, but the fixture contains no gradients to compare with"
            ),
            None => write!(f, "ok: {n} of {n} tensors within tolerance"),
        }
    }
}

/// Returns the names in full, since a user may have misspelt them, but only the count for gradients: a model has
/// hundreds.
fn summary(not_compared: &[String]) -> String {
    let (gradients, mut parts): (Vec<String>, Vec<String>) = not_compared
        .iter()
        .cloned()
        .partition(|name| names::is_gradient(name));
    match gradients.len() {
        0 => {}
        1 => parts.push("1 gradient".to_string()),
        n => parts.push(format!("{n} gradients")),
    }
    parts.join(", ")
}

const HEADER: [&str; 8] = [
    "tensor",
    "max abs err",
    "max rel err",
    "PyTorch's own",
    "ratio",
    "at",
    "of tolerance",
    "",
];

fn write_table(f: &mut fmt::Formatter<'_>, comparisons: &[Comparison]) -> fmt::Result {
    let mut rows = vec![HEADER.map(String::from)];
    rows.extend(comparisons.iter().map(cells));
    let mut widths = [0; HEADER.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in &rows {
        let [name, numbers @ .., verdict] = row;
        write!(f, "{name:<width$}", width = widths[0])?;
        for (cell, width) in numbers.iter().zip(&widths[1..]) {
            write!(f, "  {cell:>width$}")?;
        }
        // The last column is not padded, so that lines have no trailing blanks.
        writeln!(f, "{}{verdict}", if verdict.is_empty() { "" } else { "  " })?;
    }
    Ok(())
}

fn cells(comparison: &Comparison) -> [String; HEADER.len()] {
    let absent = || "-".to_string();
    let tolerance = comparison.tolerance.as_ref();
    let torch_error = tolerance.and_then(|tolerance| tolerance.torch_error);
    let note = match tolerance.map(|tolerance| tolerance.basis) {
        Some(Basis::ScaledTorchError) => " (scaled)",
        Some(Basis::GrowthModel) => " (no f64 twin)",
        Some(Basis::TorchError) | None => "",
    };
    let verdict = if comparison.passed() { "ok" } else { "FAIL" };
    let measured = |number: String| tolerance.map_or_else(absent, |_| number);
    let ratio = comparison.ratio.map(|ratio| format!("{ratio:.2}"));
    let worst = comparison.worst.as_ref();
    [
        Escaped(&comparison.name).to_string(),
        measured(format!("{:.2e}", comparison.max_abs)),
        measured(format!("{:.2e}", comparison.max_rel)),
        torch_error.map_or_else(absent, |error| format!("{error:.2e}")),
        ratio.unwrap_or_else(absent),
        worst.map_or_else(absent, |worst| format!("{:?}", worst.index)),
        measured(format!("{:.0} %", comparison.share_used * 100.0)),
        format!("{verdict}{note}"),
    ]
}

/// Returns a failed comparison's fault in words, or `None` if it passed.
fn fault(comparison: &Comparison) -> Option<String> {
    let Comparison {
        n_mismatched,
        n_compared,
        typical_abs,
        ..
    } = comparison;
    Some(match &comparison.outcome {
        Outcome::WithinTolerance if comparison.n_non_finite == 0 => return None,
        Outcome::WithinTolerance => format!(
            "PyTorch's result is infinite or NaN in {} of {n_compared} elements, and ours is the same there",
            comparison.n_non_finite
        ),
        Outcome::BeyondTolerance => {
            let said = format!("{n_mismatched} of {n_compared} elements are beyond the tolerance");
            match &comparison.worst {
                None => said,
                Some(Worst {
                    index,
                    ours,
                    expected,
                }) => format!(
                    "{said}; the worst is {index:?}: ours {ours:e}, expected {expected:e}"
                ),
            }
        }
        Outcome::TypicallyBeyondTolerance => {
            let bound = comparison.tolerance.and_then(|tolerance| tolerance.typical);
            format!(
                "every element is within the tolerance, but the median error is {typical_abs:.2e}, \
                 more than its bound of {:.2e}",
                bound.unwrap_or_default()
            )
        }
        Outcome::ShapeMismatch { expected, found } => {
            format!("has shape {found:?}, expected {expected:?}")
        }
        Outcome::WrongDType { expected, found } => format!("is {found}, expected {expected}"),
        Outcome::Missing => "the run did not produce it".to_string(),
        Outcome::NothingCompared => {
            "nothing to compare: it is empty, the mask drops all of it, or PyTorch's result is not finite"
                .to_string()
        }
        Outcome::ToleranceTooWide => "at this precision and depth rounding errors may be as large as the values; \
             export the fixture in the run's own type, with f64 twins"
            .to_string(),
        Outcome::Unreadable { reason } => format!("cannot be read: {reason}"),
    })
}
