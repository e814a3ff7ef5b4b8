//! The configuration of what makes hidden states of tokens, images or sounds.

use serde::{Deserialize, Serialize};

use super::{
    Counted, LayerInputTable, NormConfig, PatchEmbeddingsConfig, PositionTableConfig,
    PositionVectors, expect, probability, setters, size,
};
use crate::error::{Error, Result};

/// What makes the hidden states that go into the first block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EmbeddingsConfig {
    /// Of token ids.
    Tokens(TokenEmbeddingsConfig),
    /// Of the pixels of an image.
    Patches(PatchEmbeddingsConfig),
    /// Of the spectrum of a sound.
    Spectrum(SpectrumEmbeddingsConfig),
}

/// The embeddings of token ids: `dropout(norm(scale · word + type + position))`, each part but the first optional.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct TokenEmbeddingsConfig {
    /// The number of tokens.
    pub n_tokens: usize,
    /// Width of the table of words.
    pub width: usize,
    /// Width of the blocks.
    pub d_model: usize,
    /// The token whose row of the table is not trained: `padding_idx` of PyTorch's `nn.Embedding`. It still gets a gradient
    /// from a head that shares the table.
    #[serde(default)]
    pub padding: Option<u32>,
    /// Factor on the embedding of a word (Gemma, BART's `scale_embedding`, Granite).
    pub scale: f64,
    /// The table of positions, if there is one.
    pub positions: Option<PositionTableConfig>,
    /// The number of token types (segments), if they have a table.
    pub n_types: Option<usize>,
    /// The number of tasks, if they have a table; every token has the first (ERNIE).
    #[serde(default)]
    pub n_tasks: Option<usize>,
    /// What becomes of the words where some are hidden behind a token for that (ESM).
    #[serde(default)]
    pub token_dropout: Option<TokenDropout>,
    /// Whether the sum is 0 where the mask drops a token (ESM).
    #[serde(default)]
    pub blank_padding: bool,
    /// The norm of the sum.
    pub norm: Option<NormConfig>,
    /// Whether the norm is of the words alone, before anything is added (Blenderbot Small's decoder).
    #[serde(default)]
    pub norm_of_words: bool,
    /// The table of words that the inputs of layers are made of, if these have some.
    #[serde(default)]
    pub layer_inputs: Option<LayerInputTable>,
    /// The map from the tables' width to that of the blocks, where the two differ.
    pub projection: Option<EmbeddingProjection>,
    /// Dropout probability of the sum.
    pub dropout: f64,
}

/// Words behind the mask's token are 0, as if by a dropout, and all others are scaled by `(1 - usual) / (1 - share)`, where
/// `share` of a sequence's tokens are hidden.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenDropout {
    /// The token that hides a word.
    pub token: u32,
    /// The share that was hidden in training.
    pub usual: f64,
}

/// A map from the width of a table of words to that of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbeddingProjection {
    /// What is projected.
    pub of: Projected,
    /// Whether it has a bias.
    pub bias: bool,
}

/// What an [`EmbeddingProjection`] projects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Projected {
    /// The words alone, before positions are added; the blocks' output is mapped back to their width (OPT).
    Words,
    /// The sum behind its norm (ALBERT, ELECTRA).
    Sum,
}

impl TokenEmbeddingsConfig {
    /// The embeddings of words alone.
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
        /// Sets the width of the table of words.
        with_width(width: usize) => width = width;
        /// Sets the token whose row is not trained.
        with_padding(padding: u32) => padding = Some(padding);
        /// Sets the factor on the embedding of a word.
        with_scale(scale: f64) => scale = scale;
        /// Sets the number of token types.
        with_types(n_types: usize) => n_types = Some(n_types);
        /// Sets the number of tasks.
        with_tasks(n_tasks: usize) => n_tasks = Some(n_tasks);
        /// Sets what becomes of the words where some are hidden.
        with_token_dropout(dropout: TokenDropout) => token_dropout = Some(dropout);
        /// Sets whether the sum is 0 where the mask drops a token.
        with_blank_padding(blank: bool) => blank_padding = blank;
        /// Sets the norm of the sum.
        with_norm(norm: NormConfig) => norm = Some(norm);
        /// Sets whether the norm is of the words alone.
        with_norm_of_words(of_words: bool) => norm_of_words = of_words;
        /// Sets the table of words that the inputs of layers are made of.
        with_layer_inputs(table: LayerInputTable) => layer_inputs = Some(table);
        /// Sets the map to the width of the blocks.
        with_projection(projection: EmbeddingProjection) => projection = Some(projection);
        /// Sets the dropout probability.
        with_dropout(dropout: f64) => dropout = dropout;
    }

    /// Adds a table of positions, counted over all tokens from row 0.
    pub fn with_positions(self, n_rows: usize) -> Self {
        self.with_position_table(PositionTableConfig {
            n_rows,
            first_row: 0,
            counted: Counted::All,
            vectors: PositionVectors::Learned,
        })
    }

    /// Adds a table of positions.
    pub fn with_position_table(mut self, table: PositionTableConfig) -> Self {
        self.positions = Some(table);
        self
    }

    /// Width of the sum of the tables.
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
                    "positions are as many sines as cosines, but {width} wide; expected an even width"
                )));
            }
        }
        if let Some(dropout) = &self.token_dropout {
            probability("the usual share of hidden tokens", dropout.usual)?;
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

/// The embeddings of a sound's log-mel spectrum: two convolutions over time, each with a GELU, and positions (Whisper).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpectrumEmbeddingsConfig {
    /// Bands of the spectrum.
    pub n_mels: usize,
    /// Width of the blocks.
    pub d_model: usize,
    /// Positions, half as many as time steps.
    pub n_positions: usize,
    /// Dropout probability of the sum.
    pub dropout: f64,
}

impl From<TokenEmbeddingsConfig> for EmbeddingsConfig {
    fn from(config: TokenEmbeddingsConfig) -> Self {
        Self::Tokens(config)
    }
}

impl EmbeddingsConfig {
    /// Width of the hidden states that it makes.
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
