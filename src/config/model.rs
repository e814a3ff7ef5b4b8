//! The configuration of a whole model: embeddings, blocks, pooler and head.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{BlockConfig, EmbeddingsConfig, Projected, ReadoutConfig, StackConfig, setters};
use crate::error::{Error, Result};

/// A whole model: what makes hidden states of its input, the blocks, and what is read from their output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct ModelConfig {
    /// What goes into the first block.
    pub embeddings: EmbeddingsConfig,
    /// The blocks and the norm behind them.
    pub stack: StackConfig,
    /// The pooler, if there is one.
    pub pooler: Option<ReadoutConfig>,
    /// The head, if there is one.
    pub head: Option<HeadConfig>,
}

/// A head and what it is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadConfig {
    /// What it is for.
    pub task: Task,
    /// What it computes.
    pub readout: ReadoutConfig,
}

/// How two stacks of one checkpoint make one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Joint {
    /// The decoder attends to the encoder's output (BART, T5, Whisper).
    Memory {
        /// The token before the first, where the decoder reads the encoder's tokens.
        start_token: Option<u32>,
    },
    /// A text and an image are compared: `exp(weight) · cos + bias` (CLIP, SigLIP).
    Similarity {
        /// Whether it has a bias.
        bias: bool,
    },
}

/// What the head of a model is for: transformers' `..For<Task>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Task {
    /// The next token.
    CausalLm,
    /// The tokens behind a mask.
    MaskedLm,
    /// A label for each text.
    SequenceClassification,
    /// A label for each token.
    TokenClassification,
    /// Where an answer begins and ends.
    QuestionAnswering,
    /// Whether one text follows another, or not.
    NextSentence,
    /// How well a text fits, beside others: one of several choices, each a row of the batch.
    MultipleChoice,
    /// Which tokens were replaced (ELECTRA's discriminator).
    ReplacedTokens,
    /// A label for each image.
    ImageClassification,
    /// A vector that texts and images have in common.
    Projection,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl ModelConfig {
    /// A model without pooler and head.
    pub fn new(embeddings: EmbeddingsConfig, stack: StackConfig) -> Self {
        Self {
            embeddings,
            stack,
            pooler: None,
            head: None,
        }
    }

    setters! {
        /// Sets the pooler.
        with_pooler(pooler: ReadoutConfig) => pooler = Some(pooler);
        /// Sets the head.
        with_head(head: HeadConfig) => head = Some(head);
    }

    /// Width of the last hidden state: that of the words where the blocks' output is mapped back to it, otherwise that of the
    /// blocks.
    pub fn output_width(&self) -> usize {
        self.words_behind().unwrap_or(self.embeddings.d_model())
    }

    /// The width of the words that the blocks' output is mapped back to, if it is.
    pub(crate) fn words_behind(&self) -> Option<usize> {
        let EmbeddingsConfig::Tokens(tokens) = &self.embeddings else {
            return None;
        };
        let projection = tokens.projection?;
        (projection.of == Projected::Words).then_some(tokens.width)
    }

    /// Checks the parts, and that they fit together.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if a size is out of range or two widths differ.
    pub fn validate(&self) -> Result<()> {
        self.stack.validate()?;
        self.embeddings.validate()?;
        let (found, expected) = (
            self.embeddings.d_model(),
            self.stack.blocks.first().map(BlockConfig::d_model),
        );
        if expected.is_some_and(|expected| expected != found) {
            return Err(Error::InvalidConfig(format!(
                "embeddings of width {found} for blocks of {expected:?}"
            )));
        }
        if let EmbeddingsConfig::Tokens(tokens) = &self.embeddings {
            let of_layers = self.stack.layer_inputs.map(|norm| norm.d_model);
            let expected = of_layers.map(|width| width * self.stack.layers.len());
            let found = tokens.layer_inputs.map(|table| table.width);
            if found.is_some() && found != expected {
                return Err(Error::InvalidConfig(format!(
                    "a table of layers' inputs of width {found:?} for layers that read {expected:?} together"
                )));
            }
        }
        let head = self.head.iter().map(|head| &head.readout);
        let mut readouts = self.pooler.iter().chain(head);
        readouts.try_for_each(ReadoutConfig::validate)
    }
}
