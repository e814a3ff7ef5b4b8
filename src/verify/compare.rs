//! The comparer: one tensor of ours against one of PyTorch's, element by element, in double precision.

use candle_core::{DType, Tensor};
use serde::Serialize;

use super::company::Company;
use super::expected::{Expected, elements};
use super::json_float;
use super::kept_rows::KeptRows;
use super::tolerance::{Precisions, Tolerance, epsilon, largest, median};

/// How to compare: which rows count, and in which precision the run was computed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Comparer<'a> {
    kept: Option<&'a KeptRows>,
    precision: Option<DType>,
}

impl<'a> Comparer<'a> {
    /// Compares all rows, at the precision of our tensor's own type.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves out the rows that a mask drops, in every tensor that begins with the mask's `[batch, seq]`
    /// other than gradients of parameters.
    pub fn with_kept(mut self, rows: &'a KeptRows) -> Self {
        self.kept = Some(rows);
        self
    }

    /// States the coarsest floating type that the run rounds to, such as `BF16` for weights packed to
    /// bf16 under `F32` activations. A tensor that arrives in a coarser type is then a failure.
    pub fn with_precision(mut self, precision: DType) -> Self {
        self.precision = Some(precision);
        self
    }

    /// The rows that count, if not all do.
    pub(super) fn kept(&self) -> Option<&'a KeptRows> {
        self.kept
    }

    /// Compares one tensor, of any floating type, device and layout.
    ///
    /// Whatever is wrong with `ours` is a failed [`Comparison`], not an error.
    pub fn compare(&self, name: &str, ours: &Tensor, expected: &Expected) -> Comparison {
        self.compare_in(None, name, ours, expected)
    }

    /// As [`Self::compare`], in the company of a fixture's other gradients.
    pub(super) fn compare_in(
        &self,
        company: Option<Company>,
        name: &str,
        ours: &Tensor,
        expected: &Expected,
    ) -> Comparison {
        match self.measure(company, name, ours, expected) {
            Ok(comparison) => comparison,
            Err(outcome) => Comparison::without_numbers(name, expected, outcome),
        }
    }

    fn measure(
        &self,
        company: Option<Company>,
        name: &str,
        ours: &Tensor,
        expected: &Expected,
    ) -> Result<Comparison, Outcome> {
        let dims = expected.value().dims();
        if ours.dims() != dims {
            return Err(Outcome::ShapeMismatch {
                expected: dims.to_vec(),
                found: ours.dims().to_vec(),
            });
        }
        let precisions = self.precisions(ours.dtype(), expected.value().dtype())?;
        let pairs = self
            .pairs(name, ours, expected)
            .map_err(|error| Outcome::Unreadable {
                reason: error.to_string(),
            })?;
        let finite: Vec<&Pair> = pairs.iter().filter(|pair| pair.torch.is_finite()).collect();
        if finite.is_empty() {
            return Err(Outcome::NothingCompared);
        }
        let torch: Vec<f64> = finite.iter().map(|pair| pair.torch).collect();
        let tolerance = if has_useful_twin(expected) {
            let exact: Vec<f64> = finite.iter().map(|pair| pair.truth).collect();
            Tolerance::from_twin(&torch, &exact, precisions, company)
        } else {
            let longest = dims.iter().copied().max().unwrap_or(1);
            Tolerance::from_model(&torch, precisions, longest, expected.depth())
        };
        let tolerance = tolerance.ok_or(Outcome::ToleranceTooWide)?;
        let n_non_finite = pairs.len() - finite.len();
        Ok(Comparison::of_pairs(
            name,
            dims,
            &pairs,
            n_non_finite,
            tolerance,
        ))
    }

    fn precisions(&self, ours: DType, fixture: DType) -> Result<Precisions, Outcome> {
        let wrong = |expected: String| Outcome::WrongDType {
            expected,
            found: ours.as_str().to_string(),
        };
        let floating = || wrong("a floating type (f32, f16, bf16, f64)".to_string());
        let stored = epsilon(ours).ok_or_else(floating)?;
        let run = match self.precision {
            None => stored,
            Some(stated) => {
                let run = epsilon(stated).ok_or_else(floating)?;
                if stored > run {
                    return Err(wrong(format!("{} or finer", stated.as_str())));
                }
                run
            }
        };
        // `Expected` holds floating types only; were it otherwise, the strictest epsilon is the safe one.
        let fixture = epsilon(fixture).unwrap_or(f64::EPSILON);
        Ok(Precisions { fixture, run })
    }

    /// The elements of the rows that count, ours beside PyTorch's.
    fn pairs(
        &self,
        name: &str,
        ours: &Tensor,
        expected: &Expected,
    ) -> candle_core::Result<Vec<Pair>> {
        let torch = elements(expected.value())?;
        let exact = match expected.exact() {
            Some(exact) => Some(elements(exact)?),
            None => None,
        };
        // All three have the shape checked before, so that no index can be out of range.
        let pair = |(index, ours): (usize, f64)| Pair {
            index,
            ours,
            torch: torch[index],
            truth: exact.as_ref().map_or(torch[index], |exact| exact[index]),
        };
        let ours = elements(ours)?.into_iter().enumerate();
        let rows = self
            .kept
            .and_then(|rows| rows.rows_of(name, expected.value().dims()));
        Ok(match rows {
            None => ours.map(pair).collect(),
            Some((keep, width)) => ours.filter(|(i, _)| keep[i / width]).map(pair).collect(),
        })
    }
}

/// A twin of a double-precision value holds the same number, and says nothing about its error.
fn has_useful_twin(expected: &Expected) -> bool {
    expected.exact().is_some() && expected.value().dtype() != DType::F64
}

/// One element that counts.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// Its place in row-major order.
    index: usize,
    ours: f64,
    torch: f64,
    /// The twin's value where there is a twin, PyTorch's own otherwise.
    truth: f64,
}

impl Pair {
    /// What ours should be: where PyTorch's own result is infinite or NaN, exactly that.
    fn target(&self) -> f64 {
        if self.torch.is_finite() {
            self.truth
        } else {
            self.torch
        }
    }

    /// The distance from the target: infinite for NaN, and for an infinity that is not expected.
    fn error(&self) -> f64 {
        let target = self.target();
        if self.ours == target || (self.ours.is_nan() && target.is_nan()) {
            return 0.0;
        }
        let distance = (self.ours - target).abs();
        if distance.is_nan() {
            f64::INFINITY
        } else {
            distance
        }
    }
}

/// How a comparison came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
#[non_exhaustive]
pub enum Outcome {
    /// Passed: no element, and not the typical element, is beyond the tolerance.
    WithinTolerance,
    /// At least one element is beyond the tolerance, or is infinite or NaN where it should not be.
    BeyondTolerance,
    /// No element is beyond the tolerance, but the typical element is: a small error all over.
    TypicallyBeyondTolerance,
    /// Our tensor has another shape.
    ShapeMismatch {
        /// PyTorch's shape.
        expected: Vec<usize>,
        /// Our shape.
        found: Vec<usize>,
    },
    /// Our tensor is not of a floating type, or of a coarser one than the run states.
    WrongDType {
        /// What would be right.
        expected: String,
        /// The type of our tensor.
        found: String,
    },
    /// The run did not produce the tensor.
    Missing,
    /// No finite element is left to compare: the tensor is empty, the mask drops all of it, or PyTorch's
    /// result is all infinite or NaN.
    NothingCompared,
    /// Rounding errors may be as large as the values, so that a tensor of zeros would pass.
    ToleranceTooWide,
    /// A tensor could not be read, such as from a device that failed.
    Unreadable {
        /// What candle reports.
        reason: String,
    },
}

/// The element of ours that is furthest from the truth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// Where it is, one number per dimension.
    pub index: Vec<usize>,
    /// Our value.
    #[serde(serialize_with = "json_float::number")]
    pub ours: f64,
    /// The true value: the twin's, or PyTorch's own where there is no twin or the result is not finite.
    #[serde(serialize_with = "json_float::number")]
    pub expected: f64,
}

/// One tensor of ours against PyTorch's.
///
/// Errors are distances from the f64 twin, or from PyTorch's own result where there is none. Where
/// nothing could be compared ([`Outcome::ShapeMismatch`] and those after it) the errors are infinite and
/// the counts zero. In JSON, `inf` and `NaN` are strings, and `null` means that there is no such number.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The tensor's name in the fixture.
    pub name: String,
    /// How it came out.
    pub outcome: Outcome,
    /// PyTorch's shape.
    pub shape: Vec<usize>,
    /// The largest error.
    #[serde(serialize_with = "json_float::number")]
    pub max_abs: f64,
    /// The largest error of an element in proportion to the element itself, where that is not 0.
    #[serde(serialize_with = "json_float::number")]
    pub max_rel: f64,
    /// The median error.
    #[serde(serialize_with = "json_float::number")]
    pub typical_abs: f64,
    /// The element with the largest error.
    pub worst: Option<Worst>,
    /// The largest error in proportion to PyTorch's own; only with a twin.
    #[serde(serialize_with = "json_float::option")]
    pub ratio: Option<f64>,
    /// The bounds, and PyTorch's own errors.
    pub tolerance: Option<Tolerance>,
    /// The error in proportion to its bound, for the worst or the typical element, whichever is more.
    /// Above 1 is a failure.
    #[serde(serialize_with = "json_float::number")]
    pub share_used: f64,
    /// How many elements are beyond the bound on the worst.
    pub n_mismatched: usize,
    /// How many elements were compared, finite or not.
    pub n_compared: usize,
    /// In how many of these PyTorch's result is infinite or NaN, and ours had to be the same.
    pub n_non_finite: usize,
}

impl Comparison {
    /// Whether the tensor is as PyTorch's.
    pub fn passed(&self) -> bool {
        self.outcome == Outcome::WithinTolerance
    }

    /// The comparison of a tensor that the run did not produce.
    pub(super) fn missing(name: &str, expected: &Expected) -> Self {
        Self::without_numbers(name, expected, Outcome::Missing)
    }

    fn without_numbers(name: &str, expected: &Expected, outcome: Outcome) -> Self {
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

    fn of_pairs(
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

/// `part / whole`, where nothing of nothing is 0 and something of nothing is infinite.
fn share(part: f64, whole: f64) -> f64 {
    if part == 0.0 { 0.0 } else { part / whole }
}

fn max_rel(pairs: &[Pair], errors: &[f64]) -> f64 {
    let relative: Vec<f64> = pairs
        .iter()
        .zip(errors)
        .filter(|(pair, _)| pair.target() != 0.0)
        // An infinity that ours lacks is an infinite error over an infinite value: NaN, ranked largest.
        .map(|(pair, &error)| share(error, pair.target().abs()))
        .collect();
    largest(&relative)
}

/// A row-major place as one number per dimension.
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

    #[test]
    fn only_the_same_infinity_and_nan_for_nan_are_right() {
        let error = |ours, torch| {
            let pair = Pair {
                index: 0,
                ours,
                torch,
                truth: 1.0,
            };
            pair.error()
        };
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        for (ours, torch) in [(inf, inf), (-inf, -inf), (nan, nan), (1.0, 7.0)] {
            assert_eq!(error(ours, torch), 0.0, "{ours} for {torch}");
        }
        let wrong = [(inf, -inf), (nan, inf), (inf, nan), (1.0, inf), (1.0, nan)];
        for (ours, torch) in wrong
            .into_iter()
            .chain([(nan, 1.0), (inf, 1.0), (-inf, 1.0)])
        {
            assert_eq!(error(ours, torch), inf, "{ours} for {torch}");
        }
    }
}
