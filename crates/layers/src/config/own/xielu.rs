//! The initial values for xIELU, an activation function with two learned parameters.

use serde::{Deserialize, Serialize};

use super::{finite, positive};
use crate::error::Result;

/// The initial values for an xIELU: `positive · x² + slope · x` where x is positive, else `negative · (exp(min(x,
/// knee)) - 1 - x) + slope · x` (Huang and Schlag 2024, <https://arxiv.org/abs/2411.13010>; transformers'
/// `XIELUActivation`). Each network learns the first two, as `ln(exp(positive) - 1)` and `ln(exp(negative - slope) -
/// 1)`. Set it in [`FeedForwardConfig::xielu`](crate::FeedForwardConfig::xielu).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct XieluConfig {
    /// The curvature for positive x.
    pub positive: f64,
    /// The factor for negative x, larger than `slope`.
    pub negative: f64,
    /// The slope on both sides of 0.
    pub slope: f64,
    /// The end of the exponential, just below 0.
    pub knee: f64,
}

impl Default for XieluConfig {
    /// Returns transformers' defaults.
    fn default() -> Self {
        Self {
            positive: 0.8,
            negative: 0.8,
            slope: 0.5,
            knee: -1e-6,
        }
    }
}

impl XieluConfig {
    pub(in crate::config) fn validate(&self) -> Result<()> {
        positive("xIELU's positive", self.positive)?;
        positive(
            "xIELU's negative less its slope",
            self.negative - self.slope,
        )?;
        finite("xIELU's slope", self.slope)?;
        positive("xIELU's knee, negated,", -self.knee)
    }
}
