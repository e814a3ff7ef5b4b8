//! The configuration of alternating updates: several streams of hidden states, with one active stream per block.

use serde::{Deserialize, Serialize};

use super::size;
use crate::error::{Error, Result};

/// Alternating updates (AltUp, Baykal et al. 2023, <https://arxiv.org/abs/2301.13310>), as in Gemma 3n: a block
/// predicts each stream from all streams, computes its layers on the active one, and corrects each prediction by the
/// difference between output and prediction.
///
/// Let `x_i` be the streams and `c(x) = tanh(router(norm(x) / d_model))` the coefficients. The prediction is `p_i =
/// x_i + Σ_j prediction(c(x_active))_ij · x_j`. With the block's output `y` for `p_active`, the corrected stream is
/// `p_i + (1 + correction(c(y))_i) · (y - p_active)`. The result of the block's [per-layer
/// input](super::LayerInputConfig) and the active stream times a learned vector is added to all streams except the
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AltUpConfig {
    /// The stream count. Streams are concatenated: rows have `n_streams · d_model` columns.
    pub n_streams: usize,
    /// The active stream's index.
    pub active: usize,
}

impl AltUpConfig {
    /// Returns a configuration with `n_streams` streams. Only stream `active` passes through the block.
    #[must_use]
    pub fn new(n_streams: usize, active: usize) -> Self {
        Self { n_streams, active }
    }

    pub(in crate::config) fn validate(&self) -> Result<()> {
        size("the number of streams", self.n_streams)?;
        if self.n_streams == 1 {
            let reason = "altup has one stream; expected at least 2, or no altup";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        match self.active < self.n_streams {
            true => Ok(()),
            false => Err(Error::InvalidConfig(format!(
                "stream {} is active, but there are {}",
                self.active, self.n_streams
            ))),
        }
    }
}
