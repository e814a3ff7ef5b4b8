//! Configurations for mixers, the layers through which a position reads other positions.

use serde::{Deserialize, Serialize};

use crate::config::size;
use crate::error::{Error, Result};

mod attention;
mod facts;
mod gated_delta_net;
mod hybrid_heads;
mod lightning;
mod mamba;
mod mamba2;
mod multipliers;
mod parts;
mod rg_lru;
mod short_convolution;

pub(crate) use attention::HeadsOfRank;
pub use attention::{
    AttentionBias, AttentionConfig, OutputGate, OutputGateSpan, QueryKeyNorm, QueryKeyNormSpan,
    Visibility,
};
pub use facts::{HeadLayout, MixerFacts, PaddedRows};
pub use gated_delta_net::{DeltaForm, GatedDeltaNetConfig};
pub use hybrid_heads::HybridHeadsConfig;
pub use lightning::LightningConfig;
pub use mamba::MambaConfig;
pub use mamba2::{Mamba2Config, Mamba2Norm};
pub use multipliers::Mamba2Multipliers;
pub use parts::MixerPart;
pub use rg_lru::RgLruConfig;
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
    /// A gated delta rule.
    GatedDeltaNet(GatedDeltaNetConfig),
    /// Mamba's state space model.
    Mamba(MambaConfig),
    /// Mamba-2's state space model.
    Mamba2(Mamba2Config),
    /// A real-gated linear recurrent unit.
    RgLru(RgLruConfig),
    /// Lightning attention.
    Lightning(LightningConfig),
    /// Attention and Mamba-2 side by side.
    HybridHeads(Box<HybridHeadsConfig>),
    /// No mixer: the block is a feed-forward alone (Nemotron-H).
    Absent {
        /// The width of the block's input and output.
        d_model: usize,
    },
}

macro_rules! kinds {
    ($($kind:ident($config:ty)),+) => {
        $(impl From<$config> for MixerConfig {
            fn from(config: $config) -> Self {
                Self::$kind(config.into())
            }
        })+
    };
}

kinds!(
    Attention(AttentionConfig),
    ShortConvolution(ShortConvolutionConfig),
    GatedDeltaNet(GatedDeltaNetConfig),
    Mamba(MambaConfig),
    Mamba2(Mamba2Config),
    RgLru(RgLruConfig),
    Lightning(LightningConfig),
    HybridHeads(HybridHeadsConfig)
);

impl MixerConfig {
    /// Returns the attention, alone or beside Mamba-2.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if the mixer is another kind.
    pub fn attention(&self) -> Result<&AttentionConfig> {
        match self {
            Self::Attention(attention) => Ok(attention),
            Self::HybridHeads(heads) => Ok(&heads.attention),
            other => Err(other.not_attention()),
        }
    }

    /// Returns the attention, to change it.
    ///
    /// # Errors
    /// Same as [`Self::attention`].
    pub fn attention_mut(&mut self) -> Result<&mut AttentionConfig> {
        match self {
            Self::Attention(attention) => Ok(attention),
            Self::HybridHeads(heads) => Ok(&mut heads.attention),
            other => Err(other.not_attention()),
        }
    }

    /// Returns no mixer, for a block that is a feed-forward alone.
    pub fn absent(d_model: usize) -> Self {
        Self::Absent { d_model }
    }

    /// Returns true if there is no mixer.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent { .. })
    }

    /// Returns the properties by which other parts of a model know the mixer.
    pub fn facts(&self) -> MixerFacts {
        match self {
            Self::Attention(attention) => attention.facts(),
            Self::ShortConvolution(convolution) => convolution.facts(),
            Self::GatedDeltaNet(delta) => delta.facts(),
            Self::Mamba(mamba) => mamba.facts(),
            Self::Mamba2(mamba) => mamba.facts(),
            Self::RgLru(lru) => lru.facts(),
            Self::Lightning(lightning) => lightning.facts(),
            Self::HybridHeads(heads) => heads.facts(),
            Self::Absent { d_model } => MixerFacts::row_by_row(*d_model),
        }
    }

    /// Returns how many weights each position multiplies outside attention, whose products depend on the length too.
    #[doc(hidden)]
    pub fn multiplied_weights(&self) -> usize {
        match self {
            Self::Attention(_) | Self::Absent { .. } => 0,
            Self::ShortConvolution(of) => (4 * of.d_model + of.taps) * of.d_model,
            Self::GatedDeltaNet(delta) => delta.multiplied_weights(),
            Self::Mamba(mamba) => mamba.multiplied_weights(),
            Self::Mamba2(mamba) => mamba.multiplied_weights(),
            Self::RgLru(lru) => lru.multiplied_weights(),
            Self::Lightning(lightning) => lightning.multiplied_weights(),
            Self::HybridHeads(heads) => heads.mamba.multiplied_weights(),
        }
    }

    /// # Errors
    /// Same as [`BlockConfig::validate`](crate::BlockConfig::validate).
    pub(super) fn validate(&self) -> Result<()> {
        match self {
            Self::Attention(attention) => attention.validate(),
            Self::ShortConvolution(convolution) => convolution.validate(),
            Self::GatedDeltaNet(delta) => delta.validate(),
            Self::Mamba(mamba) => mamba.validate(),
            Self::Mamba2(mamba) => mamba.validate(),
            Self::RgLru(lru) => lru.validate(),
            Self::Lightning(lightning) => lightning.validate(),
            Self::HybridHeads(heads) => heads.validate(),
            Self::Absent { d_model } => size("d_model", *d_model),
        }
    }

    /// Reduces the mixer to the part that one rank computes.
    pub(super) fn divide(&mut self, rank: usize, size: usize) -> std::result::Result<(), String> {
        match self {
            Self::Attention(attention) => attention.divide(rank, size),
            Self::Absent { .. } => {
                Err("a block without a mixer is not divided among ranks".to_string())
            }
            other => Err(format!("{} is not divided among ranks", other.kind())),
        }
    }

    /// Returns the mixer's name, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Attention(_) => "attention",
            Self::ShortConvolution(_) => "a short convolution",
            Self::GatedDeltaNet(_) => "a gated delta rule",
            Self::Mamba(_) => "Mamba's state space model",
            Self::Mamba2(_) => "Mamba-2's state space model",
            Self::RgLru(_) => "a real-gated linear recurrent unit",
            Self::Lightning(_) => "lightning attention",
            Self::HybridHeads(_) => "attention beside Mamba-2",
            Self::Absent { .. } => "absent",
        }
    }

    fn not_attention(&self) -> Error {
        let kind = self.kind();
        Error::InvalidConfig(format!(
            "the mixer is {kind}, not attention; read MixerConfig::facts for what all mixers have"
        ))
    }
}
