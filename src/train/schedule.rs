//! Learning rate schedules.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// The change in the learning rate after the warm-up. Pass it to [`Schedule::new`](crate::train::Schedule::new).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Decay {
    /// It stays constant.
    None,
    /// It decreases linearly to 0 at the last step.
    Linear,
    /// It follows half a cosine to 0 at the last step.
    Cosine,
}

/// A learning rate schedule: a factor for each step that rises linearly from 0 during the warm-up and then follows
/// [`Decay`].
///
/// Equals transformers' `get_constant_schedule_with_warmup`, `get_linear_schedule_with_warmup` and
/// `get_cosine_schedule_with_warmup`
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/optimization.py>).
///
/// ```
/// use candle_blocks::train::{Decay, Schedule};
/// let schedule = Schedule::new(Decay::Linear, 10, 110);
/// assert_eq!(schedule.factor(5), 0.5);
/// assert_eq!(schedule.factor(10), 1.0);
/// assert_eq!(schedule.factor(60), 0.5);
/// assert_eq!(schedule.factor(110), 0.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct Schedule {
    decay: Decay,
    warm_up: usize,
    total: usize,
}

impl Schedule {
    /// Makes a schedule for `total` steps, beginning with `warm_up` steps of warm-up. After `total`, the last value stays.
    pub fn new(decay: Decay, warm_up: usize, total: usize) -> Self {
        Self {
            decay,
            warm_up,
            total,
        }
    }

    /// Returns the factor for a step, counted from 0.
    pub fn factor(&self, step: usize) -> f64 {
        let (step, warm_up, total) = (step as f64, self.warm_up as f64, self.total as f64);
        if step < warm_up {
            return step / warm_up.max(1.0);
        }
        let span = (total - warm_up).max(1.0);
        match self.decay {
            Decay::None => 1.0,
            Decay::Linear => ((total - step) / span).max(0.0),
            Decay::Cosine => {
                // Beyond the last step transformers' formula would climb again.
                let progress = ((step - warm_up) / span).min(1.0);
                (0.5 * (1.0 + libm::cos(PI * progress))).max(0.0)
            }
        }
    }
}
