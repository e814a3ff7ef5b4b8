//! Tests whether values have the same distribution as a reference.

use std::collections::BTreeMap;

use candle_blocks::candle_core::Tensor;

use crate::{numbers::numbers, reference::Reference};

/// The number of models in the reference: `N_MODELS` in `weights/fixtures/reference/initialization.py`.
pub const N_MODELS: u64 = 200;
/// Among a few thousand comparisons, none should be this many standard errors off.
pub const SIGMAS: f64 = 5.0;

#[derive(Clone, Copy, Debug)]
pub struct Statistics {
    count: f64,
    pub mean: f64,
    pub deviation: f64,
    pub kurtosis: f64,
    largest: f64,
}

impl Statistics {
    pub fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let moment = |n| values.iter().map(|x| (x - mean).powi(n)).sum::<f64>() / count;
        let variance = moment(2);
        let kurtosis = if variance > 0.0 {
            moment(4) / variance.powi(2)
        } else {
            0.0
        };
        Self {
            count,
            mean,
            deviation: variance.sqrt(),
            kurtosis,
            largest: values.iter().fold(0.0, |all, x| x.abs().max(all)),
        }
    }

    fn read(tensor: &Tensor) -> Self {
        let [count, mean, deviation, kurtosis, largest] = numbers(tensor).try_into().unwrap();
        Self {
            count,
            mean,
            deviation,
            kurtosis,
            largest,
        }
    }

    /// Returns why the two distributions differ.
    fn differs(&self, theirs: &Self) -> Option<String> {
        if self.count != theirs.count {
            return Some(format!("{} elements beside {}", self.count, theirs.count));
        }
        if theirs.deviation == 0.0 {
            let is_same = self.deviation == 0.0 && self.mean == theirs.mean;
            return (!is_same).then(|| "not the same constant".to_string());
        }
        // Sampling errors of both sides together.
        let error = (2.0 / self.count).sqrt();
        let spread = theirs.deviation * ((theirs.kurtosis - 1.0) / 4.0).sqrt();
        let is_cut = theirs.kurtosis < 2.6;
        // The asymptotic variance of the kurtosis: of a normal law, or of an exponential one, as a logarithm of uniform values has.
        let of_kurtosis = if theirs.kurtosis < 5.0 { 24f64 } else { 8064.0 };
        let checks = [
            ("mean", self.mean - theirs.mean, theirs.deviation * error),
            (
                "deviation",
                self.deviation - theirs.deviation,
                spread * error,
            ),
            (
                "kurtosis",
                self.kurtosis - theirs.kurtosis,
                of_kurtosis.sqrt() * error,
            ),
            // Among thousands of uniform values, the largest is this close to the bound.
            (
                "bound",
                if is_cut {
                    self.largest - theirs.largest
                } else {
                    0.0
                },
                theirs.largest * 2e-3,
            ),
        ];
        let wrong = checks
            .iter()
            .find(|(_, off, error)| off.abs() > SIGMAS * error)?;
        Some(format!("{} is {:.1e} off", wrong.0, wrong.1))
    }
}

pub fn check(reference: &Reference, drawn: &BTreeMap<String, Vec<f64>>) {
    let mut wrong = Vec::new();
    for (name, values) in drawn {
        let theirs = Statistics::read(&reference.get(name));
        let ours = Statistics::of(values);
        if let Some(why) = ours.differs(&theirs) {
            wrong.push(format!("{name}: {why}: {ours:?} beside {theirs:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
