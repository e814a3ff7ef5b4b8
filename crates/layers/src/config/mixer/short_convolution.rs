//! The configuration of gated short convolutions.

use serde::{Deserialize, Serialize};

use super::MixerFacts;
use crate::config::{setters, size};
use crate::error::Result;

/// A gated short convolution, the mixer of LFM2 (Liquid AI 2025, <https://arxiv.org/abs/2511.23404>). `*` is elementwise:
///
/// ```text
/// [b, c, x'] = input(x)
/// u          = b * x'
/// yₚ         = output(c * (bias + Σₜ weightₜ * u₍ₚ₋ₜ₎))      for the last `taps` positions
/// ```
///
/// A position reads itself and `taps - 1` earlier ones, so that a cache holds as many rows of each sequence, whatever its
/// length. Padding before and after a sequence is no position of it. Pass it to
/// [`ShortConvolution::new`](crate::layers::ShortConvolution::new).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct ShortConvolutionConfig {
    /// The width of the input and the output.
    pub d_model: usize,
    /// How many positions a result reads (transformers' `conv_L_cache`).
    pub taps: usize,
    /// Both projections and the convolution have a bias.
    pub bias: bool,
}

impl ShortConvolutionConfig {
    /// Returns a convolution over `taps` positions, without biases.
    pub fn new(d_model: usize, taps: usize) -> Self {
        Self {
            d_model,
            taps,
            bias: false,
        }
    }

    setters! {
        /// Sets whether the projections and the convolution have a bias.
        with_bias(bias: bool) => bias = bias;
    }

    /// Returns the properties by which other parts of a model know this mixer.
    pub(crate) fn facts(&self) -> MixerFacts {
        MixerFacts::recurrent(self.d_model, self.taps.saturating_sub(1) * self.d_model)
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) names the wrong setting and says what is expected.
    pub fn validate(&self) -> Result<()> {
        size("d_model", self.d_model)?;
        size(
            "the width of three projections",
            self.d_model.saturating_mul(3),
        )?;
        size("the taps of a short convolution", self.taps)
    }
}
