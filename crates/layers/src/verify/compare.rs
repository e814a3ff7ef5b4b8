//! The comparer: compares a tensor with PyTorch's, element by element, in double precision.

use candle_core::{DType, Tensor};

use super::comparison::{Comparison, Outcome};
use super::epsilon::epsilon;
use super::expected::{Expected, elements};
use super::kept_rows::KeptRows;
use super::pair::Pair;
use super::peers::Peers;
use super::tolerance::{Precisions, Tolerance};

/// Compares tensors with PyTorch's. Holds the rows to compare and the precision of the run.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Comparer<'a> {
    kept: Option<&'a KeptRows>,
    precision: Option<DType>,
}

impl<'a> Comparer<'a> {
    /// Returns a comparer for all rows, at the precision of each tensor's dtype.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves out the rows that a mask drops, in every tensor that begins with the mask's `[batch, seq]`, except
    /// parameter gradients.
    pub fn with_kept(mut self, rows: &'a KeptRows) -> Self {
        self.kept = Some(rows);
        self
    }

    /// Sets the least precise dtype that the run rounds to, such as `BF16` for weights packed to bf16 with `F32`
    /// activations. A tensor with a less precise dtype is then a failure.
    pub fn with_precision(mut self, precision: DType) -> Self {
        self.precision = Some(precision);
        self
    }

    /// Returns the rows to compare, or `None` for all.
    pub(super) fn kept(&self) -> Option<&'a KeptRows> {
        self.kept
    }

    /// Compares one tensor with any floating-point dtype, on any device and in any layout.
    ///
    /// Any fault in `ours` gives a failed [`Comparison`], not an error.
    pub fn compare(&self, name: &str, ours: &Tensor, expected: &Expected) -> Comparison {
        self.compare_among(None, name, ours, expected)
    }

    /// Like [`Self::compare`], together with the fixture's other gradients.
    pub(super) fn compare_among(
        &self,
        peers: Option<Peers>,
        name: &str,
        ours: &Tensor,
        expected: &Expected,
    ) -> Comparison {
        match self.measure(peers, name, ours, expected) {
            Ok(comparison) => comparison,
            Err(outcome) => Comparison::without_numbers(name, expected, outcome),
        }
    }

    fn measure(
        &self,
        peers: Option<Peers>,
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
        // A double-precision value equals its twin, which shows nothing about the value's error.
        let tolerance = if expected.exact().is_some() && expected.value().dtype() != DType::F64 {
            let exact: Vec<f64> = finite.iter().map(|pair| pair.truth).collect();
            Tolerance::from_twin(&torch, &exact, precisions, peers)
        } else {
            let longest = dims.iter().copied().max().unwrap_or(1);
            Tolerance::from_model(&torch, precisions, longest, expected.depth(), peers)
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
        let floating = || wrong("a floating-point type (f32, f16, bf16, f64)".to_string());
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
        // `Expected` holds only floating types. For any other type the smallest epsilon is the safe choice.
        let fixture = epsilon(fixture).unwrap_or(f64::EPSILON);
        Ok(Precisions { fixture, run })
    }

    /// Returns the elements in the rows to compare, ours with PyTorch's.
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
        // All three have the shape checked before, so no index is out of range.
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
