//! PyTorch's error in a gradient, judged in the company of the fixture's other gradients.
//!
//! In the gradient of one small parameter PyTorch's largest error is a matter of luck: its own two
//! attention paths differ there by up to ten times. Its error relative to the gradient's largest value,
//! over all gradients of a run, is not.

use super::{
    expected::{Expected, elements},
    kept_rows::KeptRows,
    tolerance::{largest, median},
};

/// What a gradient may err in the company of the others of its fixture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Company {
    /// The mean over all gradients of PyTorch's largest error over the largest value.
    pub worst: f64,
    /// The mean over all gradients of PyTorch's median error over the median value.
    pub typical: f64,
    /// The largest value among the gradients of this one's module: its scale, where it is itself noise.
    pub scale: f64,
}

/// PyTorch's errors in one gradient.
struct Errors<'f> {
    module: &'f str,
    worst: f64,
    typical: f64,
    largest: f64,
}

/// The company of each gradient, in their order; `None` where none has a twin.
pub(super) fn company(
    gradients: &[(String, Expected)],
    kept: Option<&KeptRows>,
) -> Vec<Option<Company>> {
    let errors: Vec<Errors> = gradients
        .iter()
        .filter_map(|(name, e)| errors(name, e, kept))
        .collect();
    let mean =
        |of: fn(&Errors) -> f64| errors.iter().map(of).sum::<f64>() / errors.len().max(1) as f64;
    let (worst, typical) = (mean(|e| e.worst), mean(|e| e.typical));
    let of = |(name, _): &(String, Expected)| {
        let siblings = errors
            .iter()
            .filter(|e| e.module == module(name))
            .map(|e| e.largest);
        let scale = largest(&siblings.collect::<Vec<_>>());
        (!errors.is_empty()).then_some(Company {
            worst,
            typical,
            scale,
        })
    };
    gradients.iter().map(of).collect()
}

fn errors<'f>(name: &'f str, expected: &Expected, kept: Option<&KeptRows>) -> Option<Errors<'f>> {
    let torch = elements(expected.value()).ok()?;
    let exact = elements(expected.exact()?).ok()?;
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
    Some(Errors {
        module: module(name),
        worst: relative(error, value),
        typical: relative(median(errors), median(values)),
        largest: if value.is_finite() { value } else { 0.0 },
    })
}

/// A parameter's name without its last part.
fn module(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}
