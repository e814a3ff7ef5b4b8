//! The configuration of poolers and heads, the readouts from the blocks' output.

use serde::{Deserialize, Serialize};

use super::{
    Activation, AttentionConfig, FeedForwardConfig, NormConfig, finite, probability, setters, size,
};
use crate::error::{Error, Result};

/// A pooler or a head: selects positions in the blocks' output, and applies an optional layer and an optional linear
/// map to the output. Set it in [`ModelConfig::pooler`](crate::config::ModelConfig::pooler).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct ReadoutConfig {
    /// The positions to read.
    pub reads: TokenSelection,
    /// The layer before the output.
    pub transform: Option<TransformConfig>,
    /// The linear map to the output.
    pub output: Option<OutputConfig>,
    /// The dropout probability before the layer.
    pub dropout: f64,
}

/// The positions that a readout takes from the blocks' output.
/// Set them in [`ReadoutConfig::reads`](crate::config::ReadoutConfig::reads).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TokenSelection {
    /// Every position, `[batch, seq, d]`.
    Each,
    /// The first position, `[batch, d]`.
    First,
    /// The last position.
    Last,
    /// The last position whose token is not padding (GPT-2, Llama). Without padding, the last position; a mask that
    /// hides it is then an error.
    LastExcept(Option<u32>),
    /// The first position whose token has this id, or the first position if there is none (CLIP).
    FirstOf(u32),
    /// The last position whose token has this id (BART, T5).
    LastOf(u32),
    /// The position with the highest token id (CLIP's older files).
    Highest,
    /// The mean over the positions that the mask keeps (ModernBERT).
    Mean,
    /// The mean over the positions after this many (CLIP).
    MeanAfter(usize),
    /// The mean over the positions that the mask keeps, after the layer (EuroBERT).
    MeanTransformed,
    /// The first position, concatenated with the mean over later ones, `[batch, 2 d]` (DINOv2).
    FirstAndMean {
        /// The number of positions before the mean's.
        skipped: usize,
    },
    /// The first two positions, each with its own output map. The output is the mean over both (DeiT with its
    /// teacher).
    FirstTwo,
    /// Windows of consecutive positions, each normalized, concatenated: `[batch, seq / positions, positions * d]`
    /// (Qwen2-VL).
    Windows {
        /// The number of positions in a window.
        positions: usize,
        /// The norm for each position.
        norm: NormConfig,
    },
    /// Attention from a learned query to all positions (SigLIP).
    Attended(Box<AttentionPoolConfig>),
    /// The pooler's output.
    Pooled,
}

/// The configuration of attention pooling: a learned query attends to all positions. The result `x` becomes `x +
/// feed_forward(norm(x))`. Set it in [`TokenSelection::Attended`](crate::config::TokenSelection::Attended).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionPoolConfig {
    /// The attention.
    pub attention: AttentionConfig,
    /// The norm before the feed-forward.
    pub norm: NormConfig,
    /// The feed-forward.
    pub feed_forward: FeedForwardConfig,
}

impl AttentionPoolConfig {
    /// Returns a pooler with this attention, norm and feed-forward.
    #[must_use]
    pub fn new(
        attention: AttentionConfig,
        norm: NormConfig,
        feed_forward: FeedForwardConfig,
    ) -> Self {
        Self {
            attention,
            norm,
            feed_forward,
        }
    }
}

/// A linear layer with an activation and a norm: `norm(act(W·x + b))`.
/// Set it in [`ReadoutConfig::transform`](crate::config::ReadoutConfig::transform).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct TransformConfig {
    /// The linear layer's width and bias. Without it, only activation and norm are applied.
    pub linear: Option<TransformLinear>,
    /// The activation function.
    pub activation: Activation,
    /// The norm.
    pub norm: Option<NormConfig>,
}

/// The linear layer in a [`TransformConfig`]. Set it in [`TransformConfig::linear`](crate::config::TransformConfig::linear).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TransformLinear {
    /// The output width.
    pub d_out: usize,
    /// The layer has a bias.
    pub bias: bool,
}

impl TransformLinear {
    /// Returns a linear layer to `d_out` features, with or without a bias.
    #[must_use]
    pub fn new(d_out: usize, bias: bool) -> Self {
        Self { d_out, bias }
    }
}

/// The linear map to a head's output: `cap(scale · (W·x + b))`, where `unit_rows` divides each row of `W` by its length.
/// Set it in [`ReadoutConfig::output`](crate::config::ReadoutConfig::output).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct OutputConfig {
    /// The output width: the number of tokens or labels.
    pub n_out: usize,
    /// The output's form: a vector or a scalar.
    pub form: OutputForm,
    /// The source of the weight.
    pub weight: OutputWeight,
    /// The map has a bias.
    pub bias: bool,
    /// Each row of the weight is divided by its length (Baichuan 2). The map must have no bias.
    #[serde(default)]
    pub unit_rows: bool,
    /// The factor on the output (Cohere's `logit_scale`).
    pub scale: f64,
    /// The soft cap on the output: `cap · tanh(x / cap)` (Gemma 2).
    pub soft_cap: Option<f64>,
    /// The dropout probability for the input.
    pub dropout: f64,
}

/// The form of a head's output. Set it in [`OutputConfig::form`](crate::config::OutputConfig::form).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputForm {
    /// A vector, `[.., n_out]`.
    Vector,
    /// A scalar, `[..]`, with `n_out = 1` (ELECTRA's discriminator).
    Number,
}

/// The source of an output weight. Set it in [`OutputConfig::weight`](crate::config::OutputConfig::weight).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputWeight {
    /// A separate weight.
    Own,
    /// The word table (tied embeddings).
    Words,
}

impl ReadoutConfig {
    /// Returns a readout that selects positions and nothing else.
    pub fn new(reads: TokenSelection) -> Self {
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
        /// Sets the dropout probability before the layer.
        with_dropout(dropout: f64) => dropout = dropout;
    }

    /// Checks sizes and values.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if one is out of range.
    pub fn validate(&self) -> Result<()> {
        probability("a head's dropout", self.dropout)?;
        if let TokenSelection::Attended(pool) = &self.reads {
            pool.attention.validate()?;
            pool.norm.validate()?;
            pool.feed_forward.validate()?;
        }
        if let TokenSelection::Windows { positions, norm } = &self.reads {
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
                    "a head's output is a scalar, but {} wide; set its width to 1",
                    output.n_out
                )));
            }
            if output.unit_rows && output.bias {
                let reason = "a head divides each row of its weight by the row's length, and has a bias; remove the bias";
                return Err(Error::InvalidConfig(reason.to_string()));
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
    /// Returns a linear layer to this width, with a bias, and an activation.
    pub fn new(d_out: usize, activation: Activation) -> Self {
        Self {
            linear: Some(TransformLinear { d_out, bias: true }),
            activation,
            norm: None,
        }
    }

    /// Returns a norm without a linear layer.
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
    /// Returns a map to this width, with a separate weight and no bias.
    pub fn new(n_out: usize) -> Self {
        Self {
            n_out,
            form: OutputForm::Vector,
            weight: OutputWeight::Own,
            bias: false,
            unit_rows: false,
            scale: 1.0,
            soft_cap: None,
            dropout: 0.0,
        }
    }

    /// Returns a map to a scalar, with a separate weight and a bias.
    pub fn number() -> Self {
        Self {
            form: OutputForm::Number,
            bias: true,
            ..Self::new(1)
        }
    }

    setters! {
        /// Sets the source of the weight.
        with_weight(weight: OutputWeight) => weight = weight;
        /// Sets whether the map has a bias.
        with_bias(bias: bool) => bias = bias;
        /// Sets whether each row of the weight is divided by its length.
        with_unit_rows(unit_rows: bool) => unit_rows = unit_rows;
        /// Sets the factor on the output.
        with_scale(scale: f64) => scale = scale;
        /// Sets the soft cap.
        with_soft_cap(soft_cap: Option<f64>) => soft_cap = soft_cap;
        /// Sets the dropout probability for the input.
        with_dropout(dropout: f64) => dropout = dropout;
    }
}
