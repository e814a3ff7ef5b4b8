//! Computes vectors for texts by a model or by a table.

use candle_core::Tensor;

use super::Sentences;
use super::static_embedding::{StaticEmbedding, TableUse};
use crate::checkpoint::AppliedAdapter;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::text::encoder::reading::TextInput;
use crate::text::sentence_files::PoolingBody;
use crate::text::sentences::stages::{Feature, ModuleStep, after, width_after};

/// Computes vectors for one kind of texts.
#[derive(Clone, Debug)]
pub(in crate::text) enum Pipeline {
    Model(Box<Sentences>),
    Static(Box<StaticVectors>),
}

/// A table, and the modules after it.
#[derive(Clone, Debug)]
pub(in crate::text) struct StaticVectors {
    embedding: StaticEmbedding,
    steps: Vec<ModuleStep>,
    width: usize,
}

impl Pipeline {
    /// Makes the pipeline from a table and the modules after it.
    ///
    /// # Errors
    /// If a module reads vectors with another width.
    pub fn of_table(embedding: StaticEmbedding, steps: Vec<ModuleStep>) -> Result<Self> {
        Ok(Self::Static(Box::new(StaticVectors {
            width: width_after(&steps, embedding.n_features(), Feature::Vectors)?,
            embedding,
            steps,
        })))
    }

    /// Returns the vectors for texts with a prompt, `[n, width]` in f32 on the CPU.
    ///
    /// # Errors
    /// The errors of [`Sentences::vectors`] and [`StaticEmbedding::vectors`].
    pub fn vectors(&self, texts: &[TextInput], prompt: &str) -> Result<Tensor> {
        match self {
            Self::Model(sentences) => sentences.vectors(texts, prompt),
            Self::Static(of) => {
                let vectors = of.embedding.vectors(texts, prompt)?;
                after(&of.steps, vectors, Feature::Vectors)
            }
        }
    }

    /// Returns vectors for each text's tokens.
    ///
    /// # Errors
    /// The errors of [`Sentences::vectors_of_tokens`]; also if there is no model.
    pub fn vectors_of_tokens(&self, texts: &[TextInput], prompt: &str) -> Result<Vec<Tensor>> {
        match self {
            Self::Model(sentences) => sentences.vectors_of_tokens(texts, prompt),
            Self::Static(_) => {
                let reason = "a static embedding gives one vector for each text; use `embed`";
                Err(Error::InvalidConfig(reason.into()))
            }
        }
    }

    /// Returns the model, if there is one.
    pub fn model(&self) -> Option<&Model> {
        match self {
            Self::Model(sentences) => Some(&sentences.encoder.model),
            Self::Static(_) => None,
        }
    }

    /// Returns the adapters in the model's weights.
    pub fn adapters(&self) -> &[AppliedAdapter] {
        match self {
            Self::Model(sentences) => &sentences.encoder.adapters,
            Self::Static(_) => &[],
        }
    }

    /// Returns how many features a vector has.
    pub fn width(&self) -> usize {
        match self {
            Self::Model(sentences) => sentences.width(),
            Self::Static(of) => of.width,
        }
    }

    /// Returns how many tokens a text has at most.
    pub fn max_length(&self) -> Option<usize> {
        match self {
            Self::Model(sentences) => sentences.encoder.max_length(),
            Self::Static(of) => of.embedding.max_length(),
        }
    }

    /// Returns notes on the tokenizer.
    pub fn notes(&self) -> Vec<String> {
        match self {
            Self::Model(sentences) => sentences.encoder.notes(),
            Self::Static(_) => Vec::new(),
        }
    }

    /// Returns the pooling, if there is one.
    pub fn pooling(&self) -> Option<&PoolingBody> {
        match self {
            Self::Model(sentences) => sentences.pooling(),
            Self::Static(_) => None,
        }
    }

    /// Returns the vocabulary's tokenizer, if a vector has one feature for each token.
    pub fn vocabulary(&self) -> Option<&tokenizers::Tokenizer> {
        match self {
            Self::Model(sentences) if sentences.is_over_vocabulary() => {
                Some(sentences.encoder.tokenizer.inner())
            }
            Self::Static(of)
                if of.embedding.usage == TableUse::Presence
                    && of.steps.iter().all(|step| step.stage.keeps_features()) =>
            {
                Some(&of.embedding.tokenizer)
            }
            _ => None,
        }
    }
}
