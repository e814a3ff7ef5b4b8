//! Blocks and stacks as data: which sublayers, where they normalise, how they are added.

use serde::{Deserialize, Serialize};

use super::{AttentionConfig, FeedForwardConfig, NormConfig, RelativeBiasConfig, probability};
use crate::{Error, Result};

/// Where a sublayer normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NormPlacement {
    /// `x + inner(norm(x))` (GPT-2, Llama).
    Pre,
    /// `norm(x + inner(x))` (BERT, the original transformer).
    Post,
    /// `x + output_norm(inner(norm(x)))` (Gemma 2).
    Sandwich,
    /// `x + norm(inner(x))` (OLMo 2).
    Output,
    /// `x + inner(x)`.
    None,
}

/// What a sublayer's output is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResidualSource {
    /// The sublayer's input.
    Input,
    /// The sublayer's normalised input (BLOOM's `apply_residual_connection_post_layernorm`).
    Normalised,
}

/// How a sublayer's output is added.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct ResidualConfig {
    /// What it is added to.
    pub source: ResidualSource,
    /// Factor on it (Granite's `residual_multiplier`).
    pub multiplier: f64,
    /// Whether it is multiplied by a learned vector (Touvron et al. 2021, <https://arxiv.org/abs/2103.17239>).
    pub layer_scale: bool,
    /// Probability of dropping an element of the attention's output in training.
    pub attention_dropout: f64,
    /// Probability of dropping an element of the feed-forward's output in training.
    pub feed_forward_dropout: f64,
    /// Probability of dropping an element of the sum of a parallel block's two outputs in training (Falcon).
    #[serde(default)]
    pub parallel_dropout: f64,
    /// Probability of dropping a sublayer's whole output for a sample in training (stochastic depth, Huang et al. 2016,
    /// <https://arxiv.org/abs/1603.09382>).
    #[serde(default)]
    pub drop_path: f64,
}

impl Default for ResidualConfig {
    fn default() -> Self {
        Self {
            source: ResidualSource::Input,
            multiplier: 1.0,
            layer_scale: false,
            attention_dropout: 0.0,
            feed_forward_dropout: 0.0,
            parallel_dropout: 0.0,
            drop_path: 0.0,
        }
    }
}

/// Whether the two branches of a parallel block share one norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParallelNorm {
    /// One norm for both (GPT-J, Phi, Falcon 7B, Cohere).
    Shared,
    /// One norm each (GPT-NeoX, Falcon 40B).
    Separate,
}

/// How attention and feed-forward stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Topology {
    /// The feed-forward takes the attention sublayer's output.
    Sequential,
    /// Both take the block's input, normalised, and are added to it together.
    Parallel(ParallelNorm),
}

/// One transformer block: attention and feed-forward, each a residual sublayer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct BlockConfig {
    /// Self-attention.
    pub attention: AttentionConfig,
    /// Attention to an encoder's output, between the two others.
    pub cross_attention: Option<AttentionConfig>,
    /// The feed-forward.
    pub feed_forward: FeedForwardConfig,
    /// The norm of every sublayer.
    pub norm: NormConfig,
    /// Where the attentions normalise.
    pub attention_placement: NormPlacement,
    /// Where the feed-forward normalises.
    pub feed_forward_placement: NormPlacement,
    /// One after the other, or side by side.
    pub topology: Topology,
    /// How outputs are added.
    pub residual: ResidualConfig,
}

impl BlockConfig {
    /// A sequential block of the given parts, every sublayer normalised at `placement`, no dropout.
    pub fn new(
        attention: AttentionConfig,
        feed_forward: FeedForwardConfig,
        norm: NormConfig,
        placement: NormPlacement,
    ) -> Self {
        Self {
            attention,
            cross_attention: None,
            feed_forward,
            norm,
            attention_placement: placement,
            feed_forward_placement: placement,
            topology: Topology::Sequential,
            residual: ResidualConfig::default(),
        }
    }

    /// With attention to an encoder's output.
    pub fn with_cross_attention(mut self, attention: AttentionConfig) -> Self {
        self.cross_attention = Some(attention);
        self
    }

    /// With the given topology.
    pub fn with_topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// With the given residual connections.
    pub fn with_residual(mut self, residual: ResidualConfig) -> Self {
        self.residual = residual;
        self
    }

    /// With dropout of probability `p` on the output of every sublayer.
    pub fn with_residual_dropout(mut self, p: f64) -> Self {
        self.residual.attention_dropout = p;
        self.residual.feed_forward_dropout = p;
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
        probability("residual dropout", self.residual.attention_dropout)?;
        probability("residual dropout", self.residual.feed_forward_dropout)?;
        probability("parallel dropout", self.residual.parallel_dropout)?;
        probability("drop path", self.residual.drop_path)?;
        let mut widths = vec![
            self.attention.d_model,
            self.feed_forward.d_model,
            self.norm.d_model,
        ];
        if let Some(cross) = &self.cross_attention {
            cross.validate()?;
            widths.push(cross.d_model);
        }
        if widths.iter().any(|&width| width != widths[0]) {
            return Err(Error::InvalidConfig(format!(
                "attention, feed-forward, norm (and cross-attention) have the widths {widths:?}; a block needs one"
            )));
        }
        let is_pre = self.attention_placement == NormPlacement::Pre;
        if matches!(self.topology, Topology::Parallel(_)) && !is_pre {
            return Err(Error::InvalidConfig(
                "a parallel block normalises before its branches".to_string(),
            ));
        }
        Ok(())
    }
}

/// A sequence of blocks, and what they share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct StackConfig {
    /// The blocks that have parameters.
    pub blocks: Vec<BlockConfig>,
    /// Which of them runs at each layer; ALBERT runs one many times.
    pub layers: Vec<usize>,
    /// The norm behind the last block.
    pub final_norm: Option<NormConfig>,
    /// A learned relative position bias that all blocks share.
    pub relative_bias: Option<RelativeBiasConfig>,
    /// Probability of passing over a whole layer in training (LayerDrop, Fan et al. 2019, <https://arxiv.org/abs/1909.11556>).
    #[serde(default)]
    pub layer_drop: f64,
    /// Probability of dropping an element of the stack's output in training, behind the final norm (T5).
    #[serde(default)]
    pub output_dropout: f64,
}

impl StackConfig {
    /// Blocks that run once each, in order.
    pub fn new(blocks: Vec<BlockConfig>, final_norm: Option<NormConfig>) -> Self {
        Self {
            layers: (0..blocks.len()).collect(),
            blocks,
            final_norm,
            relative_bias: None,
            layer_drop: 0.0,
            output_dropout: 0.0,
        }
    }

    /// `n_blocks` equal blocks.
    pub fn uniform(block: BlockConfig, n_blocks: usize, final_norm: Option<NormConfig>) -> Self {
        Self::new(vec![block; n_blocks], final_norm)
    }

    /// With each block changed by what depends on its index.
    pub fn with_each(mut self, mut change: impl FnMut(usize, &mut BlockConfig)) -> Self {
        for (i, block) in self.blocks.iter_mut().enumerate() {
            change(i, block);
        }
        self
    }

    /// With the given block at each layer.
    pub fn with_layers(mut self, layers: Vec<usize>) -> Self {
        self.layers = layers;
        self
    }

    /// With a relative position bias that all blocks share.
    pub fn with_relative_bias(mut self, bias: RelativeBiasConfig) -> Self {
        self.relative_bias = Some(bias);
        self
    }

    /// With a drop path that rises evenly from 0 in the first block to `rate` in the last:
    /// `torch.linspace(0, rate, n_blocks)`, as Huang et al. 2016 train and timm's models do.
    pub fn with_rising_drop_path(self, rate: f64) -> Self {
        let last = self.blocks.len().saturating_sub(1).max(1);
        self.with_each(|i, block| block.residual.drop_path = rate * i as f64 / last as f64)
    }

    /// With each layer passed over with probability `p` in training.
    pub fn with_layer_drop(mut self, p: f64) -> Self {
        self.layer_drop = p;
        self
    }

    /// With dropout of probability `p` on the output.
    pub fn with_output_dropout(mut self, p: f64) -> Self {
        self.output_dropout = p;
        self
    }

    /// Checks every block and the final norm.
    pub fn validate(&self) -> Result<()> {
        self.blocks.iter().try_for_each(BlockConfig::validate)?;
        self.final_norm.iter().try_for_each(NormConfig::validate)?;
        probability("layer drop", self.layer_drop)?;
        probability("output dropout", self.output_dropout)?;
        match self
            .layers
            .iter()
            .find(|&&block| block >= self.blocks.len())
        {
            Some(block) => Err(Error::InvalidConfig(format!(
                "a layer runs block {block}, but there are {}",
                self.blocks.len()
            ))),
            None => Ok(()),
        }
    }
}
