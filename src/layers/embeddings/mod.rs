//! What makes hidden states of tokens, images and sounds.

mod patches;
mod positions;
mod resized;
mod sines;
mod spectrum;
mod token_dropout;
mod tokens;

pub use patches::PatchEmbeddings;
pub use spectrum::SpectrumEmbeddings;
pub use tokens::{TokenEmbeddings, Tokens};

use candle_core::{Result, bail};

use crate::config::EmbeddingsConfig;
use crate::layers::{DropoutSource, ParameterSource, Weight};

/// The embeddings of a model, of whichever kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Embeddings {
    /// Of token ids.
    Tokens(TokenEmbeddings),
    /// Of the pixels of an image.
    Patches(PatchEmbeddings),
    /// Of the spectrum of a sound.
    Spectrum(SpectrumEmbeddings),
}

impl Embeddings {
    /// Gets the tables and maps of the configured kind from `vb`.
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

    /// The table of words, `[n_tokens, width]`.
    ///
    /// # Errors
    /// If there is none: the embeddings are not of tokens.
    pub(crate) fn words(&self) -> Result<&Weight> {
        match self {
            Self::Tokens(embeddings) => Ok(embeddings.word_weight()),
            _ => bail!("a head shares its weight with the words, but the model reads no tokens"),
        }
    }
}
