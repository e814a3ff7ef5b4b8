//! Layers of a single model family. Each family has a file or a folder. Other layers call it, but do not know its parts.

use candle_core::Result;

use crate::config::{
    Activation, BlockConfig, FeedForwardConfig, NormConfig, NormPlacement, OwnConfig,
    SharedTransformerConfig,
};
use crate::layers::{
    Dropout, DropoutSource, FeedForward, Norm, ParameterSource, Sublayer, SublayerNorm,
};
use crate::layers::{packed::Packing, sublayer::StageRecorder, visit::parts};
use crate::ops::Value;

pub(crate) mod gemma;
pub(super) mod sparse_mixer;
pub(super) mod streams;
pub(super) mod unit_rows;
mod xielu;
pub(crate) mod zamba;

use gemma::GemmaParts;
pub use xielu::Xielu;
use zamba::ZambaParts;

/// A block's parts that only its family has, beside attention and feed-forward.
#[derive(Clone, Debug)]
pub(crate) enum OwnParts {
    None,
    /// Gemma 3n and Gemma 4.
    Gemma(Box<GemmaParts>),
    /// The norm after attention's second residual addition (Jina's code model).
    JinaCode(Norm),
    /// The dropout for the sum of both branches (Falcon).
    Falcon(Dropout),
    /// The feed-forward after the block's own (MMS).
    Adapter(Box<Sublayer<FeedForward>>),
    /// Zamba 2.
    Zamba(Box<ZambaParts>),
}

impl OwnParts {
    /// Creates the configured parts from `vb`.
    pub fn new(config: &BlockConfig, vb: &ParameterSource) -> Result<Self> {
        Ok(match &config.own {
            // The block makes Muse Glimmer's norms.
            OwnConfig::None | OwnConfig::MuseGlimmer { .. } => Self::None,
            OwnConfig::Gemma(own) => Self::Gemma(Box::new(GemmaParts::new(own, config, vb)?)),
            OwnConfig::Zamba(own) => Self::Zamba(Box::new(ZambaParts::new(own, config, vb)?)),
            OwnConfig::JinaCode => {
                Self::JinaCode(Norm::new(&config.norm, vb.pp("second_attention_norm"))?)
            }
            &OwnConfig::Falcon { parallel_dropout } => {
                Self::Falcon(Dropout::new(parallel_dropout, DropoutSource::default())?)
            }
            &OwnConfig::Adapter { width } => {
                let inner = FeedForwardConfig::new(config.d_model())
                    .with_d_ff(width)
                    .with_activation(Activation::Relu);
                let inner = FeedForward::new(&inner, vb.pp("adapter"))?;
                // PyTorch's default, whatever the block's own.
                let norm = NormConfig {
                    eps: 1e-5,
                    ..config.norm
                };
                let norm = SublayerNorm::new(NormPlacement::Pre, &norm, "adapter", vb.clone())?;
                Self::Adapter(Box::new(Sublayer::new(inner, norm)))
            }
        })
    }

    /// Returns Gemma's parts, if the block has them.
    pub fn gemma(&self) -> Option<&GemmaParts> {
        match self {
            Self::Gemma(gemma) => Some(gemma),
            _ => None,
        }
    }

    /// Returns Zamba's parts, if the block has them.
    pub fn zamba(&self) -> Option<&ZambaParts> {
        match self {
            Self::Zamba(zamba) => Some(zamba),
            _ => None,
        }
    }

    /// Returns the shared transformer that the block runs, if any.
    pub fn transformer(&self) -> Option<&SharedTransformerConfig> {
        self.zamba()?.config.transformer.as_deref()
    }

    /// Returns true if [`Self::after_attention`] reads the attention's input.
    pub fn reads_attention_input(&self) -> bool {
        match self {
            Self::Gemma(gemma) => gemma.laurel.is_some(),
            Self::JinaCode(_) => true,
            Self::None | Self::Falcon(_) | Self::Adapter(_) | Self::Zamba(_) => false,
        }
    }

    /// Computes the next sublayer's input from the attention sublayer's output `y`, and records the stage. `input` is
    /// the attention's own input: normalized, if the sublayer has an input norm.
    pub(super) fn after_attention(
        &self,
        input: Option<&Value>,
        y: Value,
        train: bool,
        recorder: &mut StageRecorder,
    ) -> Result<Value> {
        match (self, input) {
            (Self::JinaCode(norm), Some(input)) => {
                recorder.record(norm.apply_in_place(y.added_to(Some(input))?)?)
            }
            (Self::Gemma(gemma), Some(input)) => {
                gemma.after_attention(input, recorder.record(y)?, train)
            }
            _ => recorder.record(y),
        }
    }

    /// Computes the block's output from that of its feed-forward.
    pub(super) fn after_feed_forward(&self, x: Value, train: bool) -> Result<Value> {
        match self {
            Self::Adapter(adapter) => {
                let feed = |inner: &FeedForward, x: &Value, residual: Option<&Value>| {
                    inner.apply(x, residual, train)
                };
                adapter.apply(&x, None, train, &mut StageRecorder::off(), feed)
            }
            _ => Ok(x),
        }
    }

    /// Returns the dropout for both branches' sum in a parallel block, if it is active.
    pub fn dropout_of_sum(&self, train: bool) -> Option<&Dropout> {
        match self {
            Self::Falcon(dropout) => Some(dropout).filter(|dropout| dropout.is_on(train)),
            _ => None,
        }
    }

    pub(super) fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(match self {
            Self::Gemma(gemma) => Self::Gemma(Box::new(gemma.packed(packing)?)),
            Self::JinaCode(norm) => Self::JinaCode(norm.packed()?),
            Self::Zamba(zamba) => Self::Zamba(Box::new(zamba.packed(packing)?)),
            Self::Adapter(adapter) => {
                Self::Adapter(Box::new(adapter.packed(&packing.at("adapter"))?))
            }
            Self::None | Self::Falcon(_) => self.clone(),
        })
    }
}

parts!(OwnParts:
    Self::Gemma(gemma) => [gemma] [],
    Self::Falcon(dropout) => [dropout] [],
    Self::Adapter(adapter) => [] [adapter],
    Self::Zamba(zamba) => [zamba] [],
    Self::None | Self::JinaCode(_) => [] []);
