//! The configuration of attention and Mamba-2 side by side.

use serde::{Deserialize, Serialize};

use super::{AttentionConfig, Mamba2Config, MixerFacts};
use crate::config::finite;
use crate::error::{Error, Result};

/// Attention and Mamba-2 side by side on the same input, whose outputs are added (Falcon-H1, Zuo et al. 2025,
/// <https://arxiv.org/abs/2507.22448>):
///
/// ```text
/// y = attention_multiplier · attention(x) + mamba_multiplier · mamba(x)
/// ```
///
/// A cache has the attention's keys and values, and Mamba-2's state. Pass it to
/// [`HybridHeads::new`](crate::layers::HybridHeads::new).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct HybridHeadsConfig {
    /// The attention.
    pub attention: AttentionConfig,
    /// Mamba-2.
    pub mamba: Mamba2Config,
    /// The factor on the attention's output.
    pub attention_multiplier: f64,
    /// The factor on Mamba-2's output.
    pub mamba_multiplier: f64,
}

impl HybridHeadsConfig {
    /// Returns both mixers side by side, with the factors 1.
    pub fn new(attention: AttentionConfig, mamba: Mamba2Config) -> Self {
        Self {
            attention,
            mamba,
            attention_multiplier: 1.0,
            mamba_multiplier: 1.0,
        }
    }

    /// Sets the factors on the outputs of the attention and of Mamba-2.
    pub fn with_multipliers(mut self, [attention, mamba]: [f64; 2]) -> Self {
        (self.attention_multiplier, self.mamba_multiplier) = (attention, mamba);
        self
    }

    /// Returns the properties by which other parts of a model know this mixer.
    pub(super) fn facts(&self) -> MixerFacts {
        self.mamba.facts().after(Some(&self.attention))
    }

    /// Checks both mixers, and that they fit each other.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] names the wrong setting and says what is expected.
    pub fn validate(&self) -> Result<()> {
        self.attention.validate()?;
        self.mamba.validate()?;
        finite("the attention's multiplier", self.attention_multiplier)?;
        finite("Mamba-2's multiplier", self.mamba_multiplier)?;
        let (facts, width) = (self.attention.facts(), self.mamba.d_model);
        if facts.d_model != width {
            return Err(Error::InvalidConfig(format!(
                "attention of width {} beside Mamba-2 of width {width}; expected the same width",
                facts.d_model
            )));
        }
        if !facts.is_causal || facts.shares_from.is_some() {
            return Err(Error::InvalidConfig(
                "attention beside Mamba-2 that reads later positions or another layer's keys; expected causal attention \
                 with keys of its own"
                    .to_string(),
            ));
        }
        Ok(())
    }
}
