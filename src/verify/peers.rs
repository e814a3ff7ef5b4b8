//! PyTorch's error in a gradient, judged beside its peers, the fixture's other gradients.
//!
//! In the gradient of one small parameter PyTorch's largest error is a matter of luck: its own two
//! attention paths differ there by up to ten times. Its error relative to the gradient's largest value,
//! over all gradients of a run, is not.

use super::expected::{Expected, elements};
use super::kept_rows::KeptRows;
use super::tolerance::{largest, median};

/// What the peers of a gradient, the others of its fixture, say of how far it may err.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peers {
    /// The mean over all gradients of PyTorch's largest error over the largest value.
    pub worst: f64,
    /// The mean over all gradients of PyTorch's median error over the median value.
    pub typical: f64,
    /// The largest value among the gradients of this one's module: its scale, where it is itself noise.
    pub scale: f64,
}

/// One gradient of PyTorch's.
struct Gradient<'f> {
    module: &'f str,
    largest: f64,
    /// Its largest error over its largest value, and its median error over its median value; `None` without a twin.
    errors: Option<(f64, f64)>,
}

/// What the peers of each gradient say, in their order.
pub(super) fn peers(gradients: &[(String, Expected)], kept: Option<&KeptRows>) -> Vec<Peers> {
    let known: Vec<Gradient> = gradients
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
) -> Option<Gradient<'f>> {
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
    // What is noise itself says nothing of the others.
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
    Some(Gradient {
        module: module(name),
        largest: if value.is_finite() { value } else { 0.0 },
        errors: expected.exact().map(|_| relative),
    })
}

/// A parameter's name without its last part.
fn module(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}
