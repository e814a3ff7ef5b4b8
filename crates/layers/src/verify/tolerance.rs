//! The allowed error, derived from PyTorch's own error. [`Tolerance`] has the rules, and `docs/tolerance.md`
//! explains them with measurements.
//!
//! All bounds are relative to the tensor itself: there is no absolute floor below which small values would always
//! pass. A bound that a tensor of zeros would pass proves nothing, and is refused, unless the tensor is pure
//! rounding noise in PyTorch's own precision, such as a key bias's gradient.

use serde::Serialize;

use super::sizes::{largest, median};
use super::{json_float, peers::Peers};

/// The allowed ratio between our error and PyTorch's.
const ALLOWED_RATIO: f64 = 2.0;
/// The ratio to the twin's own error, for a run as precise as the twin.
const RATIO_OF_TWIN: f64 = 1.0;
/// Half an ulp for each of the eight operations between a block's last sum and its output.
const ALLOWED_ULPS: f64 = 8.0 * 0.5;
/// Sums over half types accumulate in f32.
const COARSEST_SUM: f64 = f32::EPSILON as f64;
/// Our side and PyTorch's.
const N_ERRING_SIDES: f64 = 2.0;

/// The basis of a tolerance. It is in [`Tolerance::basis`](crate::verify::Tolerance::basis).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Basis {
    /// PyTorch's measured error in the run's precision.
    TorchError,
    /// PyTorch's measured error in another precision, scaled by the ratio between the machine epsilons.
    ScaledTorchError,
    /// A model for the growth of rounding errors, used without an f64 twin.
    GrowthModel,
}

/// The bounds on a tensor's error, and PyTorch's own errors as their basis.
///
/// The largest error must not exceed `worst`, and the median error must not exceed `typical`:
///
/// ```text
/// max|ours - exact|     <=  2 · max|torch - exact|     +  4 ulp(max|exact|)
/// median|ours - exact|  <=  2 · median|torch - exact|  +  4 ε · median|exact|
/// ```
///
/// Here `exact` is PyTorch's f64 result. If the run has another precision than the fixture, PyTorch's errors are
/// scaled by the ratio between the machine epsilons. Without a twin, the bound on the largest error comes from a
/// model for the growth of rounding errors: `2 · (√n · depth · ε_sum + 4 · √depth · ε) · max|torch|`, where n is the
/// longest dimension, depth the number of blocks passed, ε the coarser of the run's and the fixture's epsilon, and
/// ε_sum the same but never coarser than f32. When a whole fixture is compared, PyTorch's error in a gradient counts
/// as at least the mean over all gradients, relative to the gradient's size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// The basis of the bounds.
    pub basis: Basis,
    /// The bound on the largest error.
    #[serde(serialize_with = "json_float::number")]
    pub worst: f64,
    /// The bound on the median error, if there is a twin.
    #[serde(serialize_with = "json_float::option")]
    pub typical: Option<f64>,
    /// PyTorch's largest error, scaled to the run's precision, if there is a twin.
    #[serde(serialize_with = "json_float::option")]
    pub torch_error: Option<f64>,
    /// PyTorch's median error, scaled to the run's precision, if there is a twin.
    #[serde(serialize_with = "json_float::option")]
    pub torch_typical: Option<f64>,
}

/// The precisions in a comparison, as machine epsilons.
#[derive(Clone, Copy, Debug)]
pub(super) struct Precisions {
    /// The epsilon of PyTorch's result type.
    pub fixture: f64,
    /// The epsilon of the coarsest type in our run.
    pub run: f64,
}

impl Tolerance {
    /// Derives the bounds from PyTorch's results and their exact twins, all finite, element by element. Returns
    /// `None` if the bounds are too wide to prove anything.
    pub(super) fn from_twin(
        torch: &[f64],
        exact: &[f64],
        precisions: Precisions,
        peers: Option<Peers>,
    ) -> Option<Self> {
        let errors: Vec<f64> = torch
            .iter()
            .zip(exact)
            .map(|(torch, exact)| (torch - exact).abs())
            .collect();
        let magnitudes: Vec<f64> = exact.iter().map(|e| e.abs()).collect();
        let (torch_worst, max) = (largest(&errors), largest(&magnitudes));
        let (torch_typical, middle) = (median(errors), median(magnitudes));
        let (allowed_worst, allowed_typical) = match peers {
            None => (torch_worst, torch_typical),
            Some(peers) => {
                let (max, middle) = match torch_worst >= max {
                    true => (peers.scale, peers.scale), // noise
                    false => (max, middle),
                };
                let worst = torch_worst.max(peers.worst * max);
                (worst, torch_typical.max(peers.typical * middle))
            }
        };

        let at = |epsilon: f64, allowed_worst: f64, allowed_typical: f64| {
            let scale = epsilon / precisions.fixture;
            let ratio = if epsilon > f64::EPSILON {
                ALLOWED_RATIO
            } else {
                ALLOWED_RATIO + RATIO_OF_TWIN
            };
            let worst = ratio * allowed_worst * scale + ALLOWED_ULPS * ulp(max, epsilon);
            let typical = ratio * allowed_typical * scale + ALLOWED_ULPS * epsilon * middle;
            (worst, typical)
        };
        let zeros_pass = |(worst, typical): (f64, f64)| worst >= max && typical >= middle;
        let (worst, typical) = at(precisions.run, allowed_worst, allowed_typical);
        // Uses PyTorch's error in this tensor: its peers' errors must not turn a normal gradient into noise.
        let is_noise_in_pytorch = zeros_pass(at(precisions.fixture, torch_worst, torch_typical));
        if zeros_pass((worst, typical)) && !is_noise_in_pytorch {
            return None;
        }
        let scale = precisions.run / precisions.fixture;
        Some(Self {
            basis: if scale == 1.0 {
                Basis::TorchError
            } else {
                Basis::ScaledTorchError
            },
            worst,
            typical: Some(typical),
            torch_error: Some(torch_worst * scale),
            torch_typical: Some(torch_typical * scale),
        })
    }

    /// Derives the bounds from PyTorch's finite results alone, for a tensor whose longest dimension is `length` and
    /// that has passed through `depth` blocks, among a fixture's gradients. Returns `None` if the bound is too wide
    /// to prove anything.
    pub(super) fn from_model(
        torch: &[f64],
        precisions: Precisions,
        length: usize,
        depth: usize,
        peers: Option<Peers>,
    ) -> Option<Self> {
        let magnitudes: Vec<f64> = torch.iter().map(|t| t.abs()).collect();
        let max = largest(&magnitudes);
        let (length, depth) = (length as f64, depth as f64);
        let growth = |epsilon: f64| {
            let sums = length.sqrt() * depth * epsilon.min(COARSEST_SUM);
            let stores = ALLOWED_ULPS * depth.sqrt() * epsilon;
            N_ERRING_SIDES * (sums + stores)
        };
        // In half precision a small but normal gradient would also count as noise.
        let is_noise = |scale: &f64| {
            precisions.fixture <= COARSEST_SUM && max <= growth(precisions.fixture) * scale
        };
        let noise_of = peers.map(|peers| peers.scale).filter(is_noise);
        let relative = growth(precisions.fixture.max(precisions.run));
        (relative < 1.0).then_some(Self {
            basis: Basis::GrowthModel,
            worst: relative * noise_of.unwrap_or(max),
            typical: None,
            torch_error: None,
            torch_typical: None,
        })
    }
}

/// Returns the unit in the last place at `magnitude`, in a type with this epsilon and no smallest exponent.
///
/// Subnormals are left out on purpose: their fixed spacing would be an absolute floor.
fn ulp(magnitude: f64, epsilon: f64) -> f64 {
    if magnitude == 0.0 {
        return 0.0;
    }
    // `log2` may round up to the next integer just below a power of two.
    let mut power = magnitude.log2().floor().exp2();
    if power > magnitude {
        power /= 2.0;
    }
    epsilon * power
}

#[cfg(test)]
mod tests;
