//! Configurations: plain data that describes layers, without tensors or files.
//!
//! Required settings are arguments of `new`. All others have the default from PyTorch's module, and a `with_…`
//! method. [`BlockConfig::validate`] checks that the parts fit together. Every configuration can be serialized with
//! serde.

use crate::error::{Error, Result};

mod activation;
mod block;
mod disentangled;
mod embeddings;
mod feed_forward;
mod initialization;
mod latent;
mod linear;
mod mixer;
mod model;
mod norm;
mod own;
mod patches;

mod position;
mod position_table;
mod precision;
mod rank_part;
mod readout;
mod relative_bias;
mod rotary_axes;

mod stack;
mod temperature;

pub use activation::Activation;
pub use block::{
    BlockConfig, NormPlacement, ParallelNorm, ResidualConfig, ResidualSource, Topology,
};
pub use disentangled::{DisentangledConfig, PositionProjections, RelativeEmbeddingsConfig};
pub use embeddings::{
    EmbeddingProjection, EmbeddingsConfig, Projected, SpectrumEmbeddingsConfig, TokenDropout,
    TokenEmbeddingsConfig,
};
pub use feed_forward::{
    ExpertBranch, ExpertGroups, ExpertWeighting, ExpertsConfig, FeedForwardConfig, FeedForwardForm,
    GateClamp, RoutingConfig, RoutingScores, RoutingWeights, SharedExpertConfig,
};
pub use initialization::{Distribution, Initialization};
pub use latent::LatentConfig;
pub use linear::{LinearConfig, LinearInit, MlpConfig};
pub(crate) use mixer::HeadsOfRank;
pub use mixer::{
    AttentionBias, AttentionConfig, DeltaForm, GatedDeltaNetConfig, HeadLayout, HybridHeadsConfig,
    LightningConfig, Mamba2Config, Mamba2Multipliers, Mamba2Norm, MambaConfig, MixerConfig,
    MixerFacts, MixerPart, OutputGate, OutputGateSpan, PaddedRows, QueryKeyNorm, QueryKeyNormSpan,
    RgLruConfig, ShortConvolutionConfig, Visibility,
};
pub use model::{HeadConfig, HeadTask, ModelConfig, TwoStackKind};
pub use norm::{NormConfig, NormKind, NormWeight};
pub use own::{
    AltUpConfig, GemmaConfig, LayerInputConfig, LayerInputTable, OwnConfig,
    SharedTransformerConfig, XieluConfig, ZambaConfig,
};
pub use patches::{PatchEmbeddingsConfig, PixelOrder, Resizing};
pub(crate) use position::Distances;
pub use position::{
    AlibiConfig, AlibiRounding, AlibiSlopes, Position, RotaryConfig, RotaryPairing, RotaryScaling,
};
pub use position_table::{CountedTokens, LastFrequency, PositionTableConfig, PositionVectors};
pub use precision::{GroupSize, Precision};
pub use readout::{
    AttentionPoolConfig, OutputConfig, OutputForm, OutputWeight, ReadoutConfig, TokenSelection,
    TransformConfig, TransformLinear,
};
pub use relative_bias::{RelativeBiasConfig, RelativeBiasSpan};
pub use rotary_axes::{AxesOrder, PatchAxes, PatchCoordinates, RotaryAxes, TokenAxes};
pub use stack::StackConfig;
pub use temperature::{PositionTemperature, TemperatureBy};

#[doc(hidden)]
pub use candle_blocks_base::{MAX_SIZE, getters, matches, setters};
#[doc(hidden)]
pub use rank_part::rank_range;

/// The value of a key that older serialized configurations lack.
fn one<T: From<u8>>() -> T {
    1.into()
}

/// Refuses 0, and sizes above [`MAX_SIZE`].
fn size(name: &str, value: usize) -> Result<()> {
    match value {
        0 => Err(Error::InvalidConfig(format!("{name} is 0"))),
        1..=MAX_SIZE => Ok(()),
        _ => Err(Error::InvalidConfig(format!(
            "{name} is {value}; expected at most {MAX_SIZE}"
        ))),
    }
}

/// Refuses fields that are no sizes. Messages name each and its owner.
macro_rules! sizes {
    ($of:ident, $owner:literal, $($field:ident),+) => {
        $($crate::config::size(concat!(stringify!($field), " of ", $owner), $of.$field)?;)+
    };
}
use sizes;

/// Refuses NaN and infinity.
fn finite(name: &str, value: f64) -> Result<()> {
    expect(name, value, value.is_finite(), "a finite number")
}

/// Refuses NaN, infinity, 0 and negative values.
fn positive(name: &str, value: f64) -> Result<()> {
    let is_positive = value.is_finite() && value > 0.0;
    expect(name, value, is_positive, "a positive number")
}

fn probability(name: &str, p: f64) -> Result<()> {
    expect(name, p, (0.0..1.0).contains(&p), "0 <= p < 1")
}

fn expect(name: &str, value: f64, holds: bool, kind: &str) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::InvalidConfig(format!(
            "{name} is {value}; expected {kind}"
        ))),
    }
}
