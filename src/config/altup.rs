//! The configuration of alternating updates: several streams of hidden states, of which a block computes one.

use serde::{Deserialize, Serialize};

use super::size;
use crate::error::{Error, Result};

/// Alternating updates (AltUp, Baykal et al. 2023, <https://arxiv.org/abs/2301.13310>), as in Gemma 3n: a block predicts all
/// streams from all, computes what follows the active one, and corrects each by what that differs from its prediction.
///
/// Of the streams `x_i` and the coefficients `c(x) = tanh(router(norm(x) / d_model))`, the prediction is
/// `p_i = x_i + Σ_j prediction(c(x_active))_ij · x_j` and, of the block's output `y` for `p_active`, the stream
/// `p_i + (1 + correction(c(y))_i) · (y - p_active)`. What the block makes of its [own input](super::LayerInputConfig) and the
/// active stream times a learned vector is added to all streams but the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AltUpConfig {
    /// The number of streams. They lie side by side: rows have `n_streams · d_model` columns.
    pub n_streams: usize,
    /// The one that the block computes.
    pub active: usize,
}

impl AltUpConfig {
    pub(super) fn validate(&self) -> Result<()> {
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
