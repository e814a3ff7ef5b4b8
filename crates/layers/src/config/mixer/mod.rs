//! Configurations for mixers, the layers through which a position reads other positions.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

mod attention;
mod facts;
mod short_convolution;

pub(crate) use attention::HeadsOfRank;
pub use attention::{
    AttentionBias, AttentionConfig, OutputGate, OutputGateSpan, QueryKeyNorm, QueryKeyNormSpan,
    Visibility,
};
pub use facts::{HeadLayout, MixerFacts, PaddedRows};
pub use short_convolution::ShortConvolutionConfig;

/// A block's mixer: the layer through which a position reads other positions.
/// Set it in [`BlockConfig::mixer`](crate::BlockConfig::mixer).
///
/// Code that works with any mixer reads its [`MixerFacts`]; code for one kind takes that kind's configuration, for
/// example by [`Self::attention`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
// Most blocks have attention, the largest: a box would save no memory and cost a pointer.
#[allow(clippy::large_enum_variant)]
#[must_use]
#[non_exhaustive]
pub enum MixerConfig {
    /// Softmax attention.
    Attention(AttentionConfig),
    /// A gated short convolution.
    ShortConvolution(ShortConvolutionConfig),
}

impl From<AttentionConfig> for MixerConfig {
    fn from(attention: AttentionConfig) -> Self {
        Self::Attention(attention)
    }
}

impl From<ShortConvolutionConfig> for MixerConfig {
    fn from(convolution: ShortConvolutionConfig) -> Self {
        Self::ShortConvolution(convolution)
    }
}

impl MixerConfig {
    /// Returns the attention.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if the mixer is another kind.
    pub fn attention(&self) -> Result<&AttentionConfig> {
        match self {
            Self::Attention(attention) => Ok(attention),
            Self::ShortConvolution(_) => Err(not_attention()),
        }
    }

    /// Returns the attention, to change it.
    ///
    /// # Errors
    /// Same as [`Self::attention`].
    pub fn attention_mut(&mut self) -> Result<&mut AttentionConfig> {
        match self {
            Self::Attention(attention) => Ok(attention),
            Self::ShortConvolution(_) => Err(not_attention()),
        }
    }

    /// Returns the properties by which other parts of a model know the mixer.
    pub fn facts(&self) -> MixerFacts {
        match self {
            Self::Attention(attention) => attention.facts(),
            Self::ShortConvolution(convolution) => convolution.facts(),
        }
    }

    /// Returns how many weights each position multiplies in a mixer that is not attention, whose products depend on the
    /// length too.
    #[doc(hidden)]
    pub fn multiplied_weights(&self) -> usize {
        match self {
            Self::Attention(_) => 0,
            Self::ShortConvolution(of) => (4 * of.d_model + of.taps) * of.d_model,
        }
    }

    /// # Errors
    /// Same as [`BlockConfig::validate`](crate::BlockConfig::validate).
    pub(super) fn validate(&self) -> Result<()> {
        match self {
            Self::Attention(attention) => attention.validate(),
            Self::ShortConvolution(convolution) => convolution.validate(),
        }
    }

    /// Reduces the mixer to the part that one rank computes.
    pub(super) fn divide(&mut self, rank: usize, size: usize) -> std::result::Result<(), String> {
        match self {
            Self::Attention(attention) => attention.divide(rank, size),
            Self::ShortConvolution(_) => {
                Err("a short convolution is not divided among ranks".to_string())
            }
        }
    }
}

fn not_attention() -> Error {
    let reason = "the mixer is a short convolution, not attention; read MixerConfig::facts for what all mixers have";
    Error::InvalidConfig(reason.to_string())
}
