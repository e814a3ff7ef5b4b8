//! The configuration of what is read from the output of the blocks: poolers and heads.

use serde::{Deserialize, Serialize};

use super::{
    Activation, AttentionConfig, FeedForwardConfig, NormConfig, finite, probability, setters, size,
};
use crate::error::{Error, Result};

/// A pooler or a head: some positions of the blocks' output, a layer that transforms them, and a linear map to the
/// output; the last two are optional.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct ReadoutConfig {
    /// What is read.
    pub reads: Reads,
    /// The layer before the output.
    pub transform: Option<TransformConfig>,
    /// The linear map to the output.
    pub output: Option<OutputConfig>,
    /// Dropout probability before the transformation.
    pub dropout: f64,
}

/// Which positions of the blocks' output a readout takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reads {
    /// Every position, `[batch, seq, d]`.
    Each,
    /// The first, `[batch, d]`.
    First,
    /// The last.
    Last,
    /// The last whose token has another id than the padding's (GPT-2, Llama); the last where there is no padding, and a mask
    /// that hides it is then refused.
    LastExcept(Option<u32>),
    /// The first whose token has this id, or the first position if none has (CLIP).
    FirstOf(u32),
    /// The last whose token has this id (BART, T5).
    LastOf(u32),
    /// The one whose token has the highest id (CLIP's older files).
    Highest,
    /// The mean over the positions that the mask keeps (ModernBERT).
    Mean,
    /// The mean over those behind this many (CLIP).
    MeanBehind(usize),
    /// The mean over the positions that the mask keeps of what the transformation makes of each (EuroBERT).
    MeanTransformed,
    /// The first beside the mean over those behind it, `[batch, 2 d]` (DINOv2).
    FirstAndMean {
        /// Positions in front of those of the mean.
        skipped: usize,
    },
    /// The first two, each through an output map of its own; the output is the mean of both (DeiT's teacher).
    FirstTwo,
    /// Windows of so many positions that follow each other, each of which is normalised, side by side:
    /// `[batch, seq / positions, positions * d]` (Qwen2-VL).
    Windows {
        /// Positions of a window.
        positions: usize,
        /// The norm of each.
        norm: NormConfig,
    },
    /// What a learned query sees of all positions (SigLIP).
    Attended(Box<AttentionPoolConfig>),
    /// What the pooler made.
    Pooled,
}

/// The configuration of a pooling by attention: a learned query attends to all positions; `x + feed_forward(norm(x))` of
/// what it sees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionPoolConfig {
    /// The attention.
    pub attention: AttentionConfig,
    /// The norm before the feed-forward.
    pub norm: NormConfig,
    /// The feed-forward.
    pub feed_forward: FeedForwardConfig,
}

/// A linear layer with an activation and a norm: `norm(act(W·x + b))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct TransformConfig {
    /// The linear layer's width and whether it has a bias; without it, only activation and norm are applied.
    pub linear: Option<TransformLinear>,
    /// The activation.
    pub activation: Activation,
    /// The norm.
    pub norm: Option<NormConfig>,
}

/// The linear layer of a [`TransformConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransformLinear {
    /// Width of its output.
    pub d_out: usize,
    /// Whether it has a bias.
    pub bias: bool,
}

/// The linear map to a head's output: `cap(scale · (W·x + b))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct OutputConfig {
    /// Width of the output: the number of tokens or labels.
    pub n_out: usize,
    /// Whether the output has a dimension of that width, or is a number without one.
    pub form: OutputForm,
    /// Where its weight comes from.
    pub weight: OutputWeight,
    /// Whether it has a bias.
    pub bias: bool,
    /// Factor on the output (Cohere's `logit_scale`).
    pub scale: f64,
    /// `cap · tanh(x / cap)` of the output (Gemma 2).
    pub soft_cap: Option<f64>,
    /// Dropout probability of its input.
    pub dropout: f64,
}

/// Whether a head's output is a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputForm {
    /// A vector, `[.., n_out]`.
    Vector,
    /// A number, `[..]`, where `n_out` is 1 (ELECTRA's discriminator).
    Number,
}

/// Where the weight of a head's output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputWeight {
    /// It is the head's own.
    Own,
    /// It is the table of words (tied embeddings).
    Words,
}

impl ReadoutConfig {
    /// Reads these positions as they are.
    pub fn new(reads: Reads) -> Self {
        Self {
            reads,
            transform: None,
            output: None,
            dropout: 0.0,
        }
    }

    setters! {
        /// Sets the layer before the output.
        with_transform(transform: TransformConfig) => transform = Some(transform);
        /// Sets the linear map to the output.
        with_output(output: OutputConfig) => output = Some(output);
        /// Sets the dropout probability before the transformation.
        with_dropout(dropout: f64) => dropout = dropout;
    }

    /// Checks sizes and numbers.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if one is out of range.
    pub fn validate(&self) -> Result<()> {
        probability("a head's dropout", self.dropout)?;
        if let Reads::Attended(pool) = &self.reads {
            pool.attention.validate()?;
            pool.norm.validate()?;
            pool.feed_forward.validate()?;
        }
        if let Reads::Windows { positions, norm } = &self.reads {
            size("the number of positions of a window", *positions)?;
            norm.validate()?;
        }
        if let Some(transform) = &self.transform {
            if let Some(linear) = &transform.linear {
                size("the width of a head's layer", linear.d_out)?;
            }
            transform.norm.iter().try_for_each(NormConfig::validate)?;
        }
        if let Some(output) = &self.output {
            size("the width of a head's output", output.n_out)?;
            if output.form == OutputForm::Number && output.n_out != 1 {
                return Err(Error::InvalidConfig(format!(
                    "a head's output is a number, but {} wide; set its width to 1",
                    output.n_out
                )));
            }
            finite("a head's scale", output.scale)?;
            probability("a head's dropout", output.dropout)?;
            output
                .soft_cap
                .map_or(Ok(()), |cap| super::positive("a head's soft cap", cap))?;
        }
        Ok(())
    }
}

impl TransformConfig {
    /// A linear layer to this width, with a bias, and an activation.
    pub fn new(d_out: usize, activation: Activation) -> Self {
        Self {
            linear: Some(TransformLinear { d_out, bias: true }),
            activation,
            norm: None,
        }
    }

    /// A norm alone.
    pub fn norm(norm: NormConfig) -> Self {
        Self {
            linear: None,
            activation: Activation::Identity,
            norm: Some(norm),
        }
    }

    setters! {
        /// Sets the norm.
        with_norm(norm: NormConfig) => norm = Some(norm);
    }

    /// Sets whether the linear layer has a bias.
    pub fn with_bias(mut self, bias: bool) -> Self {
        self.linear = self.linear.map(|linear| TransformLinear { bias, ..linear });
        self
    }
}

impl OutputConfig {
    /// A map of its own to this width, without a bias.
    pub fn new(n_out: usize) -> Self {
        Self {
            n_out,
            form: OutputForm::Vector,
            weight: OutputWeight::Own,
            bias: false,
            scale: 1.0,
            soft_cap: None,
            dropout: 0.0,
        }
    }

    /// A map of its own to a single number, with a bias.
    pub fn number() -> Self {
        Self {
            form: OutputForm::Number,
            bias: true,
            ..Self::new(1)
        }
    }

    setters! {
        /// Sets where its weight comes from.
        with_weight(weight: OutputWeight) => weight = weight;
        /// Sets whether it has a bias.
        with_bias(bias: bool) => bias = bias;
        /// Sets the factor on the output.
        with_scale(scale: f64) => scale = scale;
        /// Sets the soft cap.
        with_soft_cap(soft_cap: Option<f64>) => soft_cap = soft_cap;
        /// Sets the dropout probability of its input.
        with_dropout(dropout: f64) => dropout = dropout;
    }
}
