//! Configurations for mixers, the layers through which a position reads other positions.

use serde::{Deserialize, Serialize};

use crate::error::Result;

mod attention;
mod facts;

pub(crate) use attention::HeadsOfRank;
pub use attention::{
    AttentionBias, AttentionConfig, OutputGate, OutputGateSpan, QueryKeyNorm, QueryKeyNormSpan,
    Visibility,
};
pub use facts::{HeadLayout, MixerFacts, PaddedRows};

/// A block's mixer: the layer through which a position reads other positions.
/// Set it in [`BlockConfig::mixer`](crate::BlockConfig::mixer).
///
/// Code that works with any mixer reads its [`MixerFacts`]; code for one kind takes that kind's configuration, for
/// example by [`Self::attention`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[must_use]
#[non_exhaustive]
pub enum MixerConfig {
    /// Softmax attention.
    Attention(AttentionConfig),
}

impl From<AttentionConfig> for MixerConfig {
    fn from(attention: AttentionConfig) -> Self {
        Self::Attention(attention)
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
        }
    }

    /// Returns the attention, to change it.
    ///
    /// # Errors
    /// Same as [`Self::attention`].
    pub fn attention_mut(&mut self) -> Result<&mut AttentionConfig> {
        match self {
            Self::Attention(attention) => Ok(attention),
        }
    }

    /// Returns the properties by which other parts of a model know the mixer.
    pub fn facts(&self) -> MixerFacts {
        match self {
            Self::Attention(attention) => attention.facts(),
        }
    }

    /// # Errors
    /// Same as [`BlockConfig::validate`](crate::BlockConfig::validate).
    pub(super) fn validate(&self) -> Result<()> {
        match self {
            Self::Attention(attention) => attention.validate(),
        }
    }

    /// Reduces the mixer to the part that one rank computes.
    pub(super) fn divide(&mut self, rank: usize, size: usize) -> std::result::Result<(), String> {
        match self {
            Self::Attention(attention) => attention.divide(rank, size),
        }
    }
}
