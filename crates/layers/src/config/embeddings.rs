//! The configuration of embeddings for tokens, images and audio.

use serde::{Deserialize, Serialize};

use super::{
    CountedTokens, LayerInputTable, NormConfig, PatchEmbeddingsConfig, PositionTableConfig,
    PositionVectors, expect, probability, setters, size,
};
use crate::error::{Error, Result};

/// The embeddings: the hidden states for the first block.
/// Set them in [`ModelConfig::embeddings`](crate::config::ModelConfig::embeddings).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingsConfig {
    /// Token embeddings.
    Tokens(TokenEmbeddingsConfig),
    /// Patch embeddings for an image.
    Patches(PatchEmbeddingsConfig),
    /// Embeddings for an audio spectrum.
    Spectrum(SpectrumEmbeddingsConfig),
}

/// Token embeddings: `dropout(norm(scale · word + type + position))`. Each part except the words is optional.
/// Set them in [`EmbeddingsConfig::Tokens`](crate::config::EmbeddingsConfig::Tokens).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct TokenEmbeddingsConfig {
    /// The vocabulary size.
    pub n_tokens: usize,
    /// The word table's width.
    pub width: usize,
    /// The blocks' width.
    pub d_model: usize,
    /// The token whose row is not trained: `padding_idx` in PyTorch's `nn.Embedding`. The row still gets a gradient
    /// from a head that shares the table.
    #[serde(default)]
    pub padding: Option<u32>,
    /// The factor on word embeddings (Gemma, BART's `scale_embedding`, Granite).
    pub scale: f64,
    /// The position table.
    pub positions: Option<PositionTableConfig>,
    /// The number of token types (segments), with a table for them.
    pub n_types: Option<usize>,
    /// The number of tasks, with a table for them. Every token has task 0 (ERNIE).
    #[serde(default)]
    pub n_tasks: Option<usize>,
    /// The scaling of word embeddings when some tokens are masked (ESM).
    #[serde(default)]
    pub token_dropout: Option<TokenDropout>,
    /// Sets the sum to 0 at positions that the attention mask drops (ESM, DeBERTa).
    #[serde(default)]
    pub blank_padding: bool,
    /// The norm over the sum.
    pub norm: Option<NormConfig>,
    /// Applies the norm to the words before anything is added (Blenderbot Small's decoder).
    #[serde(default)]
    pub norm_of_words: bool,
    /// The table for per-layer inputs.
    #[serde(default)]
    pub layer_inputs: Option<LayerInputTable>,
    /// The projection from the table's width to the blocks' width.
    pub projection: Option<EmbeddingProjection>,
    /// The dropout probability for the sum.
    pub dropout: f64,
}

/// Embeddings at mask tokens become 0, like in dropout, and all others are scaled by `(1 - usual) / (1 - share)`,
/// where `share` is the share of mask tokens in the sequence.
/// Set it in [`TokenEmbeddingsConfig::token_dropout`](crate::config::TokenEmbeddingsConfig::token_dropout).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenDropout {
    /// The mask token.
    pub token: u32,
    /// The share of mask tokens in training.
    pub usual: f64,
}

impl TokenDropout {
    /// Returns the mask token, and the usual share of masked tokens in training.
    #[must_use]
    pub fn new(token: u32, usual: f64) -> Self {
        Self { token, usual }
    }
}

/// A projection from the word table's width to the blocks' width.
/// Set it in [`TokenEmbeddingsConfig::projection`](crate::config::TokenEmbeddingsConfig::projection).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbeddingProjection {
    /// The embeddings to project.
    pub of: Projected,
    /// The projection has a bias.
    pub bias: bool,
}

impl EmbeddingProjection {
    /// Returns a projection of the named vectors, with or without a bias.
    #[must_use]
    pub fn new(of: Projected, bias: bool) -> Self {
        Self { of, bias }
    }
}

/// The input for an [`EmbeddingProjection`]. Set it in [`EmbeddingProjection::of`](crate::config::EmbeddingProjection::of).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Projected {
    /// The words, before positions are added. The blocks' output is projected back to their width (OPT).
    Words,
    /// The sum, after its norm (ALBERT, ELECTRA).
    Sum,
}

impl TokenEmbeddingsConfig {
    /// Returns embeddings with a word table only.
    pub fn new(n_tokens: usize, d_model: usize) -> Self {
        Self {
            n_tokens,
            width: d_model,
            d_model,
            padding: None,
            scale: 1.0,
            positions: None,
            n_types: None,
            n_tasks: None,
            token_dropout: None,
            blank_padding: false,
            norm: None,
            norm_of_words: false,
            layer_inputs: None,
            projection: None,
            dropout: 0.0,
        }
    }

    setters! {
        /// Sets the word table's width.
        with_width(width: usize) => width = width;
        /// Sets the token whose row is not trained.
        with_padding(padding: u32) => padding = Some(padding);
        /// Sets the factor on word embeddings.
        with_scale(scale: f64) => scale = scale;
        /// Sets the number of token types.
        with_types(n_types: usize) => n_types = Some(n_types);
        /// Sets the number of tasks.
        with_tasks(n_tasks: usize) => n_tasks = Some(n_tasks);
        /// Sets the scaling of word embeddings when some tokens are masked.
        with_token_dropout(dropout: TokenDropout) => token_dropout = Some(dropout);
        /// Sets whether the sum is 0 at positions that the attention mask drops.
        with_blank_padding(blank: bool) => blank_padding = blank;
        /// Sets the norm over the sum.
        with_norm(norm: NormConfig) => norm = Some(norm);
        /// Sets whether the norm covers only the words.
        with_norm_of_words(of_words: bool) => norm_of_words = of_words;
        /// Sets the table for per-layer inputs.
        with_layer_inputs(table: LayerInputTable) => layer_inputs = Some(table);
        /// Sets the projection to the blocks' width.
        with_projection(projection: EmbeddingProjection) => projection = Some(projection);
        /// Sets the dropout probability.
        with_dropout(dropout: f64) => dropout = dropout;
    }

    /// Adds a position table that counts all tokens from row 0.
    pub fn with_positions(self, n_rows: usize) -> Self {
        self.with_position_table(PositionTableConfig {
            n_rows,
            first_row: 0,
            counted: CountedTokens::All,
            vectors: PositionVectors::Learned,
        })
    }

    /// Adds a position table.
    pub fn with_position_table(mut self, table: PositionTableConfig) -> Self {
        self.positions = Some(table);
        self
    }

    /// Returns the width of the sum.
    pub(crate) fn sum_width(&self) -> usize {
        match self.projection {
            Some(projection) if projection.of == Projected::Words => self.d_model,
            _ => self.width,
        }
    }

    fn validate(&self) -> Result<()> {
        size("the number of tokens", self.n_tokens)?;
        size("the width of the embeddings", self.width)?;
        size("d_model", self.d_model)?;
        let is_finite = self.scale.is_finite();
        expect(
            "the embeddings' scale",
            self.scale,
            is_finite,
            "a finite number",
        )?;
        probability("the embeddings' dropout", self.dropout)?;
        if let Some(table) = &self.positions {
            size("the number of positions", table.n_rows)?;
            let width = self.sum_width();
            if table.vectors != PositionVectors::Learned && !width.is_multiple_of(2) {
                return Err(Error::InvalidConfig(format!(
                    "positions have as many sines as cosines, but are {width} wide; expected an even width"
                )));
            }
        }
        if let Some(dropout) = &self.token_dropout {
            probability("the usual share of mask tokens", dropout.usual)?;
        }
        self.layer_inputs
            .iter()
            .try_for_each(LayerInputTable::validate)?;
        if self.width != self.d_model && self.projection.is_none() {
            return Err(Error::InvalidConfig(format!(
                "embeddings of width {} for blocks of {}, and no projection between them",
                self.width, self.d_model
            )));
        }
        self.norm.iter().try_for_each(NormConfig::validate)
    }
}

/// Embeddings for an audio log-mel spectrum: two convolutions over time, each with a GELU, and positions (Whisper).
/// Set it in [`EmbeddingsConfig::Spectrum`](crate::config::EmbeddingsConfig::Spectrum).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpectrumEmbeddingsConfig {
    /// The number of mel bands.
    pub n_mels: usize,
    /// The blocks' width.
    pub d_model: usize,
    /// The number of positions, half the number of time steps.
    pub n_positions: usize,
    /// The dropout probability for the sum.
    pub dropout: f64,
}

impl SpectrumEmbeddingsConfig {
    /// Returns embeddings of log-mel spectrograms with these sizes, without dropout.
    #[must_use]
    pub fn new(n_mels: usize, d_model: usize, n_positions: usize) -> Self {
        Self {
            n_mels,
            d_model,
            n_positions,
            dropout: 0.0,
        }
    }
}

impl From<TokenEmbeddingsConfig> for EmbeddingsConfig {
    fn from(config: TokenEmbeddingsConfig) -> Self {
        Self::Tokens(config)
    }
}

impl EmbeddingsConfig {
    /// Returns the hidden states' width.
    pub fn d_model(&self) -> usize {
        match self {
            Self::Tokens(config) => config.d_model,
            Self::Patches(config) => config.d_model,
            Self::Spectrum(config) => config.d_model,
        }
    }

    /// Checks sizes and probabilities.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if one is out of range.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::Tokens(config) => config.validate(),
            Self::Patches(config) => config.validate(),
            Self::Spectrum(config) => {
                size("the number of mel bands", config.n_mels)?;
                size("d_model", config.d_model)?;
                size("the number of positions", config.n_positions)?;
                probability("the embeddings' dropout", config.dropout)
            }
        }
    }
}
