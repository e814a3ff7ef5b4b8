//! The configuration of a whole model: embeddings, blocks, pooler and head.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{BlockConfig, EmbeddingsConfig, Projected, ReadoutConfig, StackConfig, setters};
use crate::error::{Error, Result};

/// The configuration of a whole model: embeddings, blocks, pooler and head.
/// `Checkpoint::model_config` returns it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct ModelConfig {
    /// The embeddings.
    pub embeddings: EmbeddingsConfig,
    /// The blocks and the final norm.
    pub stack: StackConfig,
    /// The pooler.
    pub pooler: Option<ReadoutConfig>,
    /// The head.
    pub head: Option<HeadConfig>,
}

/// A head and its task. Set it in [`ModelConfig::head`](crate::config::ModelConfig::head).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadConfig {
    /// The task.
    pub task: HeadTask,
    /// The head's layers.
    pub readout: ReadoutConfig,
}

impl HeadConfig {
    /// Returns a head for a task.
    #[must_use]
    pub fn new(task: HeadTask, readout: ReadoutConfig) -> Self {
        Self { task, readout }
    }
}

/// The connection between two stacks in a checkpoint. It is in `SecondStack::kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TwoStackKind {
    /// The decoder attends to the encoder's output (BART, T5, Whisper).
    EncoderDecoder {
        /// The decoder's first token, if the decoder input is the encoder's tokens shifted right.
        start_token: Option<u32>,
    },
    /// The score between a text and an image is `exp(weight) · cos + bias` (CLIP, SigLIP).
    TwoTowers {
        /// The score has a bias.
        bias: bool,
    },
}

/// The task of a head: transformers' `..For<Task>`. `Model::task` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadTask {
    /// The next token.
    CausalLm,
    /// The masked tokens.
    MaskedLm,
    /// A label for each text.
    SequenceClassification,
    /// A label for each token.
    TokenClassification,
    /// The start and the end of an answer.
    QuestionAnswering,
    /// Tells whether one text follows another.
    NextSentence,
    /// A score for each of several choices, which are rows in the batch.
    MultipleChoice,
    /// Tells which tokens were replaced (ELECTRA's discriminator).
    ReplacedTokens,
    /// A label for each image.
    ImageClassification,
    /// A joint embedding for texts and images.
    Projection,
}

impl fmt::Display for HeadTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl ModelConfig {
    /// Returns a model without pooler and head.
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

    /// Returns the width of the last hidden state: the words' width if the blocks' output is projected back to it,
    /// otherwise the blocks' width.
    pub fn output_width(&self) -> usize {
        self.output_projection_width()
            .unwrap_or(self.embeddings.d_model())
    }

    /// Returns the words' width if the blocks' output is projected back to it.
    pub(crate) fn output_projection_width(&self) -> Option<usize> {
        let EmbeddingsConfig::Tokens(tokens) = &self.embeddings else {
            return None;
        };
        let projection = tokens.projection?;
        (projection.of == Projected::Words).then_some(tokens.width)
    }

    /// Checks the parts, and that their widths match.
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
            let layer_width = self.stack.layer_inputs.map(|norm| norm.d_model);
            let expected = layer_width.map(|width| width * self.stack.layers.len());
            let found = tokens.layer_inputs.map(|table| table.width);
            if found.is_some() && found != expected {
                return Err(Error::InvalidConfig(format!(
                    "a table for per-layer inputs of width {found:?}, for layers that read {expected:?} in total"
                )));
            }
        }
        let head = self.head.iter().map(|head| &head.readout);
        let mut readouts = self.pooler.iter().chain(head);
        readouts.try_for_each(ReadoutConfig::validate)
    }
}
