//! The result of comparing a tensor: the outcome, the errors, and the position of the largest error.

use serde::Serialize;

use super::expected::Expected;
use super::json_float;
use super::pair::Pair;
use super::sizes::{largest, median};
use super::tolerance::Tolerance;

/// The outcome of a comparison. It is in [`Comparison::outcome`](crate::verify::Comparison::outcome).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
#[non_exhaustive]
pub enum Outcome {
    /// Passed: no element and not the median is beyond the tolerance.
    WithinTolerance,
    /// At least one element is beyond the tolerance, or is infinite or NaN and PyTorch's is not.
    BeyondTolerance,
    /// No single element is beyond the tolerance, but the median error is: a small error everywhere.
    TypicallyBeyondTolerance,
    /// Our tensor has a different shape.
    ShapeMismatch {
        /// PyTorch's shape.
        expected: Vec<usize>,
        /// Our shape.
        found: Vec<usize>,
    },
    /// Our tensor has no floating-point dtype, or a less precise one than the run states.
    WrongDType {
        /// The expected dtype.
        expected: String,
        /// The dtype of our tensor.
        found: String,
    },
    /// The run did not produce the tensor.
    Missing,
    /// No finite element to compare: the tensor is empty, the mask drops all elements, or PyTorch's whole result is
    /// infinite or NaN.
    NothingCompared,
    /// The tolerance is as large as the values: a tensor of zeros would pass.
    ToleranceTooWide,
    /// A tensor could not be read, for example from a failed device.
    Unreadable {
        /// candle's error message.
        reason: String,
    },
}

/// The element with the largest error. It is in [`Comparison::worst`](crate::verify::Comparison::worst).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// The index, one integer per dimension.
    pub index: Vec<usize>,
    /// Our value.
    #[serde(serialize_with = "json_float::number")]
    pub ours: f64,
    /// The expected value: the f64 twin's, or PyTorch's own if there is no twin or the result is not finite.
    #[serde(serialize_with = "json_float::number")]
    pub expected: f64,
}

/// The result of comparing a tensor with PyTorch's.
///
/// Errors are distances from the f64 twin, or from PyTorch's own result if there is none. If there was nothing to
/// compare ([`Outcome::ShapeMismatch`] and later variants), the errors are infinite and the counts zero. In JSON,
/// `inf` and `NaN` are strings, and `null` is a missing value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The tensor's name in the fixture.
    pub name: String,
    /// The outcome.
    pub outcome: Outcome,
    /// PyTorch's shape.
    pub shape: Vec<usize>,
    /// The largest absolute error.
    #[serde(serialize_with = "json_float::number")]
    pub max_abs: f64,
    /// The largest relative error, over the elements that are not 0.
    #[serde(serialize_with = "json_float::number")]
    pub max_rel: f64,
    /// The median absolute error.
    #[serde(serialize_with = "json_float::number")]
    pub typical_abs: f64,
    /// The element with the largest error.
    pub worst: Option<Worst>,
    /// The largest error divided by PyTorch's own, if there is a twin.
    #[serde(serialize_with = "json_float::option")]
    pub ratio: Option<f64>,
    /// The bounds and PyTorch's own errors.
    pub tolerance: Option<Tolerance>,
    /// The error divided by its bound, for the largest or the median error, whichever is greater. Above 1 the
    /// comparison fails.
    #[serde(serialize_with = "json_float::number")]
    pub share_used: f64,
    /// The number of elements beyond the bound on the largest error.
    pub n_mismatched: usize,
    /// The number of compared elements, finite or not.
    pub n_compared: usize,
    /// The number of compared elements for which PyTorch's result is infinite or NaN, and ours had to be the same.
    pub n_non_finite: usize,
}

impl Comparison {
    /// Tells whether the tensor agrees with PyTorch's.
    pub fn passed(&self) -> bool {
        self.outcome == Outcome::WithinTolerance
    }

    /// Returns the comparison for a tensor that the run did not produce.
    pub(super) fn missing(name: &str, expected: &Expected) -> Self {
        Self::without_numbers(name, expected, Outcome::Missing)
    }

    pub(super) fn without_numbers(name: &str, expected: &Expected, outcome: Outcome) -> Self {
        Self {
            name: name.to_string(),
            outcome,
            shape: expected.value().dims().to_vec(),
            max_abs: f64::INFINITY,
            max_rel: f64::INFINITY,
            typical_abs: f64::INFINITY,
            worst: None,
            ratio: None,
            tolerance: None,
            share_used: f64::INFINITY,
            n_mismatched: 0,
            n_compared: 0,
            n_non_finite: 0,
        }
    }

    pub(super) fn of_pairs(
        name: &str,
        dims: &[usize],
        pairs: &[Pair],
        n_non_finite: usize,
        tolerance: Tolerance,
    ) -> Self {
        let errors: Vec<f64> = pairs.iter().map(Pair::error).collect();
        let n_mismatched = errors.iter().filter(|&&e| e > tolerance.worst).count();
        let max_abs = largest(&errors);
        let worst = pairs.iter().zip(&errors).find(|&(_, &e)| e == max_abs);
        let finite = pairs
            .iter()
            .zip(&errors)
            .filter(|(p, _)| p.torch.is_finite());
        let typical_abs = median(finite.map(|(_, &e)| e).collect());
        let typical_share = tolerance.typical.map_or(0.0, |t| share(typical_abs, t));
        let outcome = if n_mismatched > 0 {
            Outcome::BeyondTolerance
        } else if typical_share > 1.0 {
            Outcome::TypicallyBeyondTolerance
        } else {
            Outcome::WithinTolerance
        };
        Self {
            name: name.to_string(),
            outcome,
            shape: dims.to_vec(),
            max_abs,
            max_rel: max_rel(pairs, &errors),
            typical_abs,
            worst: worst.map(|(pair, _)| Worst {
                index: unravel(pair.index, dims),
                ours: pair.ours,
                expected: pair.target(),
            }),
            ratio: tolerance.torch_error.map(|torch| share(max_abs, torch)),
            tolerance: Some(tolerance),
            share_used: share(max_abs, tolerance.worst).max(typical_share),
            n_mismatched,
            n_compared: pairs.len(),
            n_non_finite,
        }
    }
}

/// Returns `part / whole`, with 0 for 0/0 and infinity for other divisions by 0.
fn share(part: f64, whole: f64) -> f64 {
    if part == 0.0 { 0.0 } else { part / whole }
}

fn max_rel(pairs: &[Pair], errors: &[f64]) -> f64 {
    let relative: Vec<f64> = pairs
        .iter()
        .zip(errors)
        .filter(|(pair, _)| pair.target() != 0.0)
        // An infinity missing in ours is an infinite error over an infinite value: NaN, ranked largest.
        .map(|(pair, &error)| share(error, pair.target().abs()))
        .collect();
    largest(&relative)
}

/// Converts a row-major index to one index per dimension.
fn unravel(mut place: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (i, &dim) in index.iter_mut().zip(dims).rev() {
        *i = place % dim;
        place /= dim;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_as_one_number_per_dimension() {
        assert_eq!(unravel(0, &[]), Vec::<usize>::new());
        assert_eq!(unravel(23, &[2, 3, 4]), [1, 2, 3]);
        assert_eq!(unravel(5, &[2, 3]), [1, 2]);
    }
}
