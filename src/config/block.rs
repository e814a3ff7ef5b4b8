//! The configuration of blocks: their sublayers, norms and residual connections.

use serde::{Deserialize, Serialize};

use super::{
    AltUpConfig, AttentionConfig, FeedForwardConfig, LayerInputConfig, NormConfig, Position,
    finite, probability, setters, size,
};
use crate::error::{Error, Result};

/// Where a sublayer applies its norm.
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
    /// `x + inner(x)`, without a norm.
    None,
}

/// What the output of a sublayer is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResidualSource {
    /// The sublayer's input.
    Input,
    /// The sublayer's normalised input (BLOOM's `apply_residual_connection_post_layernorm`).
    Normalized,
}

/// The configuration of a block's residual connections.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct ResidualConfig {
    /// What the output of a sublayer is added to.
    pub source: ResidualSource,
    /// Factor on the output of a sublayer (Granite's `residual_multiplier`).
    pub multiplier: f64,
    /// Whether the output of a sublayer is multiplied by a learned vector, layer scale (Touvron et al. 2021,
    /// <https://arxiv.org/abs/2103.17239>).
    pub layer_scale: bool,
    /// Dropout probability of the attention's output.
    pub attention_dropout: f64,
    /// Dropout probability of the feed-forward's output.
    pub feed_forward_dropout: f64,
    /// Dropout probability of the sum of a parallel block's two branches (Falcon).
    #[serde(default)]
    pub parallel_dropout: f64,
    /// Probability of dropping the whole output of a sublayer for a sample in training (drop path or stochastic depth,
    /// Huang et al. 2016, <https://arxiv.org/abs/1603.09382>).
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

/// Whether attention and feed-forward run in sequence or in parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Topology {
    /// The feed-forward takes the output of the attention sublayer.
    Sequential,
    /// Both take the normalised input of the block, and their outputs are added to it together.
    Parallel(ParallelNorm),
}

/// The configuration of a transformer block: attention and feed-forward, each a residual sublayer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct BlockConfig {
    /// Self-attention.
    pub attention: AttentionConfig,
    /// Cross-attention to an encoder's output, between the two other sublayers.
    pub cross_attention: Option<AttentionConfig>,
    /// The feed-forward.
    pub feed_forward: FeedForwardConfig,
    /// The kind of norm of every sublayer.
    pub norm: NormConfig,
    /// Where the attention sublayers apply their norms.
    pub attention_placement: NormPlacement,
    /// Where the feed-forward sublayer applies its norm.
    pub feed_forward_placement: NormPlacement,
    /// Whether the sublayers run in sequence or in parallel.
    pub topology: Topology,
    /// The residual connections.
    pub residual: ResidualConfig,
    /// What follows the feed-forward, if the block has an input for itself.
    #[serde(default)]
    pub layer_input: Option<LayerInputConfig>,
    /// Whether the block's output is multiplied by a number of the checkpoint, which is not trained (Gemma 4's `layer_scalar`).
    #[serde(default)]
    pub output_scale: bool,
    /// The rank of what the normalised input adds to the attention sublayer's output (LAuReL, Menghani et al. 2024,
    /// <https://arxiv.org/abs/2411.07501>): of the normalised input `n`, `(y + n + norm(up(down(n)))) / √2` (Gemma 3n).
    #[serde(default)]
    pub laurel_rank: Option<usize>,
    /// The streams of hidden states, of which the block computes one.
    #[serde(default)]
    pub altup: Option<AltUpConfig>,
}

impl BlockConfig {
    /// A sequential block of the given parts, with every norm at `placement` and without dropout.
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
            layer_input: None,
            output_scale: false,
            laurel_rank: None,
            altup: None,
        }
    }

    setters! {
        /// Adds cross-attention to an encoder's output.
        with_cross_attention(attention: AttentionConfig) => cross_attention = Some(attention);
        /// Sets whether the sublayers run in sequence or in parallel.
        with_topology(topology: Topology) => topology = topology;
        /// Sets the residual connections.
        with_residual(residual: ResidualConfig) => residual = residual;
        /// Sets what follows the feed-forward, if the block has an input for itself.
        with_layer_input(input: Option<LayerInputConfig>) => layer_input = input;
        /// Sets whether the output is multiplied by a number that is not trained.
        with_output_scale(scale: bool) => output_scale = scale;
        /// Sets the rank of what the normalised input adds to the attention sublayer's output.
        with_laurel_rank(rank: Option<usize>) => laurel_rank = rank;
        /// Sets the streams of hidden states.
        with_altup(altup: Option<AltUpConfig>) => altup = altup;
    }

    /// Sets the dropout probability of the output of every sublayer.
    pub fn with_residual_dropout(mut self, p: f64) -> Self {
        self.residual.attention_dropout = p;
        self.residual.feed_forward_dropout = p;
        self
    }

    /// The width of the input and the output.
    pub fn d_model(&self) -> usize {
        self.attention.d_model
    }

    /// Checks each part, and that all parts have the same width.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] says which setting is wrong, and what is expected.
    pub fn validate(&self) -> Result<()> {
        self.attention.validate()?;
        self.feed_forward.validate()?;
        self.norm.validate()?;
        finite("the residual multiplier", self.residual.multiplier)?;
        probability("residual dropout", self.residual.attention_dropout)?;
        probability("residual dropout", self.residual.feed_forward_dropout)?;
        probability("parallel dropout", self.residual.parallel_dropout)?;
        probability("drop path", self.residual.drop_path)?;
        let mut widths = vec![
            self.attention.d_model,
            self.feed_forward.d_model,
            self.norm.d_model,
        ];
        self.layer_input
            .iter()
            .try_for_each(LayerInputConfig::validate)?;
        self.validate_streams()?;
        if let Some(cross) = &self.cross_attention {
            cross.validate()?;
            if cross.shared_keys.is_some() || cross.values_are_keys {
                return Err(Error::InvalidConfig(
                    "cross-attention has keys and values of an encoder's output; remove shared_keys and values_are_keys"
                        .to_string(),
                ));
            }
            if let Position::Disentangled(_) = cross.position {
                return Err(Error::InvalidConfig(
                    "cross-attention has no distances; expected another position than Disentangled"
                        .to_string(),
                ));
            }
            widths.push(cross.d_model);
        }
        if widths.iter().any(|&width| width != widths[0]) {
            return Err(Error::InvalidConfig(format!(
                "attention, feed-forward, norm (and cross-attention) have the widths {widths:?}; a block needs one"
            )));
        }
        if self.topology != Topology::Sequential && self.cross_attention.is_some() {
            return Err(Error::InvalidConfig(
                "a parallel block has cross-attention; expected Topology::Sequential".to_string(),
            ));
        }
        let placements = [self.attention_placement, self.feed_forward_placement];
        if self.topology != Topology::Sequential && placements != [NormPlacement::Pre; 2] {
            return Err(Error::InvalidConfig(format!(
                "a parallel block normalises before its branches, but the norms are placed {placements:?}; \
                 expected Pre for both"
            )));
        }
        Ok(())
    }

    /// Checks what stands beside the usual branches.
    fn validate_streams(&self) -> Result<()> {
        let failed = |reason: &str| Err(Error::InvalidConfig(reason.to_string()));
        if let Some(rank) = self.laurel_rank {
            size("laurel_rank", rank)?;
            if self.topology != Topology::Sequential {
                return failed("laurel_rank in a parallel block; expected Topology::Sequential");
            }
        }
        let Some(altup) = self.altup else {
            return Ok(());
        };
        altup.validate()?;
        if self.layer_input.is_none() || self.output_scale {
            return failed(
                "a block with streams has an input for itself and no output_scale; set layer_input, or remove altup",
            );
        }
        Ok(())
    }
}
