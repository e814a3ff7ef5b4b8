//! Embeddings of tokens, images and audio.

mod input;
mod lookup;
mod patches;
mod positions;
mod resized;
mod sines;
mod spectrum;
mod token_dropout;
mod tokens;

pub use input::Tokens;
pub use patches::PatchEmbeddings;
pub use spectrum::SpectrumEmbeddings;
pub use tokens::TokenEmbeddings;

use candle_core::{Result, bail};

use crate::config::EmbeddingsConfig;
use crate::layers::{DropoutSource, ParameterSource, Weight};

/// A model's embeddings. `Model::embeddings` returns them.
#[derive(Clone, Debug)]
pub enum Embeddings {
    /// Token embeddings.
    Tokens(TokenEmbeddings),
    /// Image patch embeddings.
    Patches(PatchEmbeddings),
    /// Audio spectrogram embeddings.
    Spectrum(SpectrumEmbeddings),
}

impl Embeddings {
    /// Creates the configured embeddings with parameters from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new<'p>(config: &EmbeddingsConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        Ok(match config {
            EmbeddingsConfig::Tokens(config) => Self::Tokens(TokenEmbeddings::new(config, vb)?),
            EmbeddingsConfig::Patches(config) => Self::Patches(PatchEmbeddings::new(config, vb)?),
            EmbeddingsConfig::Spectrum(config) => {
                Self::Spectrum(SpectrumEmbeddings::new(config, vb)?)
            }
        })
    }

    /// Makes the dropout draw its masks from `source`.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        let dropout = match self {
            Self::Tokens(embeddings) => &mut embeddings.dropout,
            Self::Patches(embeddings) => &mut embeddings.dropout,
            Self::Spectrum(embeddings) => &mut embeddings.dropout,
        };
        dropout.set_source(source.clone());
    }

    /// Returns the word embedding table, `[n_tokens, width]`.
    ///
    /// # Errors
    /// If the model has no token embeddings.
    pub(crate) fn word_embeddings(&self) -> Result<&Weight> {
        match self {
            Self::Tokens(embeddings) => Ok(embeddings.word_weight()),
            _ => bail!(
                "a head shares its weight with the word embeddings, but the model reads no tokens"
            ),
        }
    }
}
