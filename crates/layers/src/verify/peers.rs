//! PyTorch's error in a gradient, compared with the errors in the fixture's other gradients, its peers.
//!
//! In a small parameter's gradient PyTorch's largest error depends on chance: PyTorch's own two attention
//! implementations differ there by up to ten times. Its error relative to the gradient's largest value, averaged
//! over all gradients in a run, does not.

use super::expected::{Expected, elements};
use super::kept_rows::KeptRows;
use super::sizes::{largest, median};

/// A bound on a gradient's error from its peers, the fixture's other gradients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peers {
    /// The mean over all gradients: PyTorch's largest error divided by the largest value.
    pub worst: f64,
    /// The mean over all gradients: PyTorch's median error divided by the median value.
    pub typical: f64,
    /// The largest value among the gradients in the same module: the scale for a gradient that is itself noise.
    pub scale: f64,
}

/// A gradient computed by PyTorch.
struct TorchGradient<'f> {
    module: &'f str,
    largest: f64,
    /// The largest error divided by the largest value, and the median error divided by the median value; `None`
    /// without a twin.
    errors: Option<(f64, f64)>,
}

/// Returns each gradient's peers, in order.
pub(super) fn peers(gradients: &[(String, Expected)], kept: Option<&KeptRows>) -> Vec<Peers> {
    let known: Vec<TorchGradient> = gradients
        .iter()
        .filter_map(|(name, expected)| gradient(name, expected, kept))
        .collect();
    let errors: Vec<(f64, f64)> = known.iter().filter_map(|g| g.errors).collect();
    let mean = |sum: f64| sum / errors.len().max(1) as f64;
    let worst = mean(errors.iter().map(|(worst, _)| worst).sum());
    let typical = mean(errors.iter().map(|(_, typical)| typical).sum());
    let of = |(name, _): &(String, Expected)| {
        let siblings = known.iter().filter(|g| g.module == module(name));
        let scale = largest(&siblings.map(|g| g.largest).collect::<Vec<_>>());
        Peers {
            worst,
            typical,
            scale,
        }
    };
    gradients.iter().map(of).collect()
}

fn gradient<'f>(
    name: &'f str,
    expected: &Expected,
    kept: Option<&KeptRows>,
) -> Option<TorchGradient<'f>> {
    let torch = elements(expected.value()).ok()?;
    let exact = match expected.exact() {
        Some(exact) => elements(exact).ok()?,
        None => torch.clone(),
    };
    let rows = kept.and_then(|kept| kept.rows_of(name, expected.value().dims()));
    let counts = |index: usize| rows.is_none_or(|(keep, width)| keep[index / width]);
    let counting = (0..exact.len()).filter(|&index| counts(index));
    let (errors, values): (Vec<f64>, Vec<f64>) = counting
        .map(|i| ((torch[i] - exact[i]).abs(), exact[i].abs()))
        .unzip();
    let (error, value) = (largest(&errors), largest(&values));
    // A gradient that is noise says nothing about the others.
    let is_noise = !(error < value && value.is_finite());
    let relative = |error: f64, value: f64| {
        if is_noise || value == 0.0 {
            0.0
        } else {
            error / value
        }
    };
    let relative = (
        relative(error, value),
        relative(median(errors), median(values)),
    );
    Some(TorchGradient {
        module: module(name),
        largest: if value.is_finite() { value } else { 0.0 },
        errors: expected.exact().map(|_| relative),
    })
}

/// Returns a parameter's name without its last part.
fn module(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}
