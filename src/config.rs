//! Plain data that says what a layer is: sizes, activation, norm, placement. No tensors, no files.
//!
//! What a layer cannot do without is an argument of `new`; everything else has the default of
//! PyTorch's own module and a `with_…` method. [`BlockConfig::validate`] checks that the parts fit.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

mod activation;

pub use activation::Activation;

/// Which normalisation a layer applies to its last dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NormKind {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` (Ba et al. 2016, <https://arxiv.org/abs/1607.06450>).
    LayerNorm,
    /// `x / sqrt(mean(x²) + eps) * weight` (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>).
    RmsNorm,
}

/// How the stored weight of a norm enters the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NormWeight {
    /// `x̂ · w`, rounded to the model's type before the product (Llama, BERT, GPT-2 ...).
    Plain,
    /// `x̂ · (1 + w)`, computed in f32 and rounded after the product (Gemma).
    OnePlus,
}

/// A normalisation over the last dimension.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NormConfig {
    /// LayerNorm or RMSNorm.
    pub kind: NormKind,
    /// Width of the last dimension.
    pub d_model: usize,
    /// Added to the variance (or mean square) before the root.
    pub eps: f64,
    /// Whether there is an additive bias.
    pub bias: bool,
    /// How the weight enters.
    pub weight: NormWeight,
}

impl NormConfig {
    /// LayerNorm with weight and bias, as `torch.nn.LayerNorm(d_model, eps)`.
    pub fn layer_norm(d_model: usize, eps: f64) -> Self {
        Self {
            kind: NormKind::LayerNorm,
            d_model,
            eps,
            bias: true,
            weight: NormWeight::Plain,
        }
    }

    /// RMSNorm with weight and no bias, as `torch.nn.RMSNorm(d_model, eps)`.
    pub fn rms_norm(d_model: usize, eps: f64) -> Self {
        Self {
            kind: NormKind::RmsNorm,
            bias: false,
            ..Self::layer_norm(d_model, eps)
        }
    }

    /// With or without an additive bias.
    pub fn with_bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// With the given form of the weight.
    pub fn with_weight(mut self, weight: NormWeight) -> Self {
        self.weight = weight;
        self
    }

    /// Checks width and eps.
    pub fn validate(&self) -> Result<()> {
        positive("d_model", self.d_model)?;
        if !(self.eps.is_finite() && self.eps >= 0.0) {
            return Err(Error::InvalidConfig(format!(
                "the norm's eps is {}; expected a small number that is not negative",
                self.eps
            )));
        }
        Ok(())
    }
}

/// Whether a feed-forward multiplies its activation by a second projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FeedForwardForm {
    /// `down(act(up(x)))`.
    Plain,
    /// `down(act(gate(x)) * up(x))`, a gated linear unit (Shazeer 2020, <https://arxiv.org/abs/2002.05202>).
    Gated,
}

/// A position-wise feed-forward network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedForwardConfig {
    /// Width of input and output.
    pub d_model: usize,
    /// Width of the hidden layer.
    pub d_ff: usize,
    /// The non-linearity.
    pub activation: Activation,
    /// Plain or gated.
    pub form: FeedForwardForm,
    /// Whether `up` (and `gate`) have a bias.
    pub up_bias: bool,
    /// Whether `down` has a bias.
    pub down_bias: bool,
    /// Probability of dropping an activation in training, after the non-linearity.
    pub dropout: f64,
}

impl FeedForwardConfig {
    /// `down(gelu(up(x)))` with biases, `d_ff = 4 * d_model` and no dropout.
    pub fn new(d_model: usize) -> Self {
        Self {
            d_model,
            d_ff: 4 * d_model,
            activation: Activation::Gelu,
            form: FeedForwardForm::Plain,
            up_bias: true,
            down_bias: true,
            dropout: 0.0,
        }
    }

    /// With a hidden width of `d_ff`.
    pub fn with_d_ff(mut self, d_ff: usize) -> Self {
        self.d_ff = d_ff;
        self
    }

    /// With another non-linearity.
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Plain or gated.
    pub fn with_form(mut self, form: FeedForwardForm) -> Self {
        self.form = form;
        self
    }

    /// With or without biases, on all projections.
    pub fn with_bias(mut self, bias: bool) -> Self {
        (self.up_bias, self.down_bias) = (bias, bias);
        self
    }

    /// With dropout of probability `p` after the activation.
    pub fn with_dropout(mut self, p: f64) -> Self {
        self.dropout = p;
        self
    }

    /// Checks sizes and probabilities.
    pub fn validate(&self) -> Result<()> {
        positive("d_model", self.d_model)?;
        positive("d_ff", self.d_ff)?;
        probability("feed-forward dropout", self.dropout)
    }
}

/// Which keys a query may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Visibility {
    /// Every position (encoders).
    Bidirectional,
    /// Itself and earlier positions (decoders).
    Causal,
}

/// Which of the four attention projections have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionBias {
    /// Query projection.
    pub query: bool,
    /// Key projection.
    pub key: bool,
    /// Value projection.
    pub value: bool,
    /// Output projection.
    pub output: bool,
}

impl AttentionBias {
    /// All four have a bias.
    pub const ALL: Self = Self {
        query: true,
        key: true,
        value: true,
        output: true,
    };
    /// None has a bias.
    pub const NONE: Self = Self {
        query: false,
        key: false,
        value: false,
        output: false,
    };
}

/// Multi-head self-attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionConfig {
    /// Width of input and output.
    pub d_model: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key/value heads; each serves `n_heads / n_kv_heads` query heads.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Factor on the scores before the softmax.
    pub scale: f64,
    /// Which keys a query may see.
    pub visibility: Visibility,
    /// Which projections have a bias.
    pub bias: AttentionBias,
    /// Probability of dropping an attention weight in training.
    pub dropout: f64,
}

impl AttentionConfig {
    /// Bidirectional attention with biases, `head_dim = d_model / n_heads`, scale `1/√head_dim`, no dropout.
    ///
    /// # Errors
    /// If `n_heads` is zero or does not divide `d_model`.
    pub fn new(d_model: usize, n_heads: usize) -> Result<Self> {
        positive("d_model", d_model)?;
        positive("n_heads", n_heads)?;
        if !d_model.is_multiple_of(n_heads) {
            return Err(Error::InvalidConfig(format!(
                "{n_heads} heads do not divide the width {d_model}; choose a divisor, or set head_dim"
            )));
        }
        Ok(Self::with_head_dim(d_model, n_heads, d_model / n_heads))
    }

    /// As [`Self::new`], for heads whose widths do not add up to `d_model`.
    pub fn with_head_dim(d_model: usize, n_heads: usize, head_dim: usize) -> Self {
        Self {
            d_model,
            n_heads,
            n_kv_heads: n_heads,
            head_dim,
            scale: 1.0 / (head_dim as f64).sqrt(),
            visibility: Visibility::Bidirectional,
            bias: AttentionBias::ALL,
            dropout: 0.0,
        }
    }

    /// With fewer key/value heads than query heads (grouped or multi-query attention).
    pub fn with_kv_heads(mut self, n_kv_heads: usize) -> Self {
        self.n_kv_heads = n_kv_heads;
        self
    }

    /// With the given visibility.
    pub fn with_visibility(mut self, visibility: Visibility) -> Self {
        self.visibility = visibility;
        self
    }

    /// With biases on the given projections.
    pub fn with_bias(mut self, bias: AttentionBias) -> Self {
        self.bias = bias;
        self
    }

    /// With another factor on the scores.
    pub fn with_scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// With dropout of probability `p` on the attention weights.
    pub fn with_dropout(mut self, p: f64) -> Self {
        self.dropout = p;
        self
    }

    /// Checks sizes, divisibility and probabilities.
    pub fn validate(&self) -> Result<()> {
        positive("d_model", self.d_model)?;
        positive("n_heads", self.n_heads)?;
        positive("n_kv_heads", self.n_kv_heads)?;
        positive("head_dim", self.head_dim)?;
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return Err(Error::InvalidConfig(format!(
                "{} key/value heads do not divide {} query heads",
                self.n_kv_heads, self.n_heads
            )));
        }
        probability("attention dropout", self.dropout)
    }
}

/// Where a sublayer normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NormPlacement {
    /// `x + dropout(inner(norm(x)))` (GPT-2, Llama).
    Pre,
    /// `norm(x + dropout(inner(x)))` (BERT, the original transformer).
    Post,
    /// `x + dropout(output_norm(inner(norm(x))))` (Gemma 2).
    Sandwich,
    /// `x + dropout(inner(x))`.
    None,
}

/// One transformer block: attention and feed-forward, each a residual sublayer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockConfig {
    /// The attention sublayer's inner layer.
    pub attention: AttentionConfig,
    /// The feed-forward sublayer's inner layer.
    pub feed_forward: FeedForwardConfig,
    /// The norm of both sublayers.
    pub norm: NormConfig,
    /// Where both sublayers normalise.
    pub placement: NormPlacement,
    /// Probability of dropping an element of a sublayer's output in training, before the residual.
    pub residual_dropout: f64,
}

impl BlockConfig {
    /// A block of the given parts with no residual dropout.
    pub fn new(
        attention: AttentionConfig,
        feed_forward: FeedForwardConfig,
        norm: NormConfig,
        placement: NormPlacement,
    ) -> Self {
        Self {
            attention,
            feed_forward,
            norm,
            placement,
            residual_dropout: 0.0,
        }
    }

    /// With dropout of probability `p` on the output of both sublayers.
    pub fn with_residual_dropout(mut self, p: f64) -> Self {
        self.residual_dropout = p;
        self
    }

    /// Width of input and output.
    pub fn d_model(&self) -> usize {
        self.attention.d_model
    }

    /// Checks each part, and that the parts have one width.
    pub fn validate(&self) -> Result<()> {
        self.attention.validate()?;
        self.feed_forward.validate()?;
        self.norm.validate()?;
        probability("residual dropout", self.residual_dropout)?;
        let widths = [
            self.attention.d_model,
            self.feed_forward.d_model,
            self.norm.d_model,
        ];
        if widths.iter().any(|&width| width != widths[0]) {
            return Err(Error::InvalidConfig(format!(
                "attention, feed-forward and norm have the widths {widths:?}; a block needs one"
            )));
        }
        Ok(())
    }
}

/// A sequence of blocks, and the norm behind the last one where the family has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackConfig {
    /// The blocks, first to last.
    pub blocks: Vec<BlockConfig>,
    /// The norm behind the last block.
    pub final_norm: Option<NormConfig>,
}

impl StackConfig {
    /// `n_blocks` equal blocks.
    pub fn uniform(block: BlockConfig, n_blocks: usize, final_norm: Option<NormConfig>) -> Self {
        Self {
            blocks: vec![block; n_blocks],
            final_norm,
        }
    }

    /// Checks every block and the final norm.
    pub fn validate(&self) -> Result<()> {
        self.blocks.iter().try_for_each(BlockConfig::validate)?;
        self.final_norm.iter().try_for_each(NormConfig::validate)
    }
}

fn positive(name: &str, value: usize) -> Result<()> {
    if value == 0 {
        return Err(Error::InvalidConfig(format!("{name} is 0")));
    }
    Ok(())
}

fn probability(name: &str, p: f64) -> Result<()> {
    if !(0.0..1.0).contains(&p) {
        return Err(Error::InvalidConfig(format!(
            "{name} is {p}; expected 0 <= p < 1"
        )));
    }
    Ok(())
}
