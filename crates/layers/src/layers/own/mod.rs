//! Layers of a single model family. Each family has a file or a folder. Other layers call it, but do not know its parts.

use candle_core::Result;

use crate::config::{BlockConfig, OwnConfig};
use crate::layers::{Dropout, DropoutSource, Norm, ParameterSource};
use crate::layers::{packed::Packing, sublayer::StageRecorder, visit::parts};
use crate::ops::Value;

pub(crate) mod gemma;
pub(super) mod sparse_mixer;
pub(super) mod unit_rows;
mod xielu;

use gemma::GemmaParts;
pub use xielu::Xielu;

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
}

impl OwnParts {
    /// Creates the configured parts from `vb`.
    pub fn new(config: &BlockConfig, vb: &ParameterSource) -> Result<Self> {
        Ok(match &config.own {
            // The block makes Muse Glimmer's norms.
            OwnConfig::None | OwnConfig::MuseGlimmer { .. } => Self::None,
            OwnConfig::Gemma(own) => Self::Gemma(Box::new(GemmaParts::new(own, config, vb)?)),
            OwnConfig::JinaCode => {
                Self::JinaCode(Norm::new(&config.norm, vb.pp("second_attention_norm"))?)
            }
            &OwnConfig::Falcon { parallel_dropout } => {
                Self::Falcon(Dropout::new(parallel_dropout, DropoutSource::default())?)
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

    /// Returns true if [`Self::after_attention`] reads the attention's input.
    pub fn reads_attention_input(&self) -> bool {
        match self {
            Self::Gemma(gemma) => gemma.laurel.is_some(),
            Self::JinaCode(_) => true,
            Self::None | Self::Falcon(_) => false,
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
            Self::None | Self::Falcon(_) => self.clone(),
        })
    }
}

parts!(OwnParts:
    Self::Gemma(gemma) => [gemma] [],
    Self::Falcon(dropout) => [dropout] [],
    Self::None | Self::JinaCode(_) => [] []);
