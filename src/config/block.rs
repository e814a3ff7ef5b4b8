//! The configuration of blocks and stacks: their sublayers, norms and residual connections.

use serde::{Deserialize, Serialize};

use super::{
    AttentionConfig, FeedForwardConfig, NormConfig, Position, RelativeBiasConfig, RelativeBiasSpan,
    RelativeEmbeddingsConfig, Visibility, finite, probability, setters,
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
        }
    }

    setters! {
        /// Adds cross-attention to an encoder's output.
        with_cross_attention(attention: AttentionConfig) => cross_attention = Some(attention);
        /// Sets whether the sublayers run in sequence or in parallel.
        with_topology(topology: Topology) => topology = topology;
        /// Sets the residual connections.
        with_residual(residual: ResidualConfig) => residual = residual;
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
        if let Some(cross) = &self.cross_attention {
            cross.validate()?;
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
        let placements = [self.attention_placement, self.feed_forward_placement];
        if self.topology != Topology::Sequential && placements != [NormPlacement::Pre; 2] {
            return Err(Error::InvalidConfig(format!(
                "a parallel block normalises before its branches, but the norms are placed {placements:?}; \
                 expected Pre for both"
            )));
        }
        Ok(())
    }
}

/// The configuration of a stack: a sequence of blocks and the parts that they share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct StackConfig {
    /// The distinct blocks.
    pub blocks: Vec<BlockConfig>,
    /// The index of the block that runs at each layer; ALBERT runs one block many times. Every block runs at least once.
    pub layers: Vec<usize>,
    /// The norm after the last block, if any.
    pub final_norm: Option<NormConfig>,
    /// The learned relative position bias, if any.
    pub relative_bias: Option<RelativeBiasConfig>,
    /// Which blocks share a table of it.
    #[serde(default)]
    pub relative_bias_span: RelativeBiasSpan,
    /// The table of embeddings of distances that all blocks of disentangled attention share.
    #[serde(default)]
    pub relative_embeddings: Option<RelativeEmbeddingsConfig>,
    /// Probability of skipping a whole layer in training (LayerDrop, Fan et al. 2019, <https://arxiv.org/abs/1909.11556>).
    #[serde(default)]
    pub layer_drop: f64,
    /// Dropout probability of the stack's output, after the final norm (T5).
    #[serde(default)]
    pub output_dropout: f64,
}

impl StackConfig {
    /// A stack of blocks that run once each, in order.
    pub fn new(blocks: Vec<BlockConfig>, final_norm: Option<NormConfig>) -> Self {
        Self {
            layers: (0..blocks.len()).collect(),
            blocks,
            final_norm,
            relative_bias: None,
            relative_bias_span: RelativeBiasSpan::Stack,
            relative_embeddings: None,
            layer_drop: 0.0,
            output_dropout: 0.0,
        }
    }

    /// A stack of `n_blocks` blocks of the same configuration.
    pub fn uniform(block: BlockConfig, n_blocks: usize, final_norm: Option<NormConfig>) -> Self {
        Self::new(vec![block; n_blocks], final_norm)
    }

    /// Changes each block's configuration by a function of its index.
    pub fn with_each(mut self, mut change: impl FnMut(usize, &mut BlockConfig)) -> Self {
        for (i, block) in self.blocks.iter_mut().enumerate() {
            change(i, block);
        }
        self
    }

    /// Makes the attention of every block causal, and lets a copy of it attend to all of an encoder's output.
    pub(crate) fn into_decoder(self) -> Self {
        self.with_each(|_, block| {
            block.attention.visibility = Visibility::Bidirectional;
            block.cross_attention = Some(block.attention.clone());
            block.attention.visibility = Visibility::Causal;
        })
    }

    setters! {
        /// Sets the index of the block that runs at each layer.
        with_layers(layers: Vec<usize>) => layers = layers;
        /// Sets the relative position bias.
        with_relative_bias(bias: RelativeBiasConfig) => relative_bias = Some(bias);
        /// Sets which blocks share a table of the relative position bias; otherwise all do.
        with_relative_bias_span(span: RelativeBiasSpan) => relative_bias_span = span;
        /// Sets the table of embeddings of distances that blocks of disentangled attention share.
        with_relative_embeddings(table: RelativeEmbeddingsConfig) => relative_embeddings = Some(table);
        /// Sets the probability of skipping a layer in training.
        with_layer_drop(p: f64) => layer_drop = p;
        /// Sets the dropout probability of the output.
        with_output_dropout(p: f64) => output_dropout = p;
    }

    /// Sets drop path probabilities that rise linearly from 0 in the first block to `rate` in the last,
    /// `torch.linspace(0, rate, n_blocks)`, as in Huang et al. 2016 and timm's models.
    pub fn with_rising_drop_path(self, rate: f64) -> Self {
        let last = self.blocks.len().saturating_sub(1).max(1);
        self.with_each(|i, block| block.residual.drop_path = rate * i as f64 / last as f64)
    }

    /// Checks every block, the final norm, the relative bias, that every layer runs a block that exists, and that every
    /// block runs.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] says which setting is wrong, and what is expected.
    pub fn validate(&self) -> Result<()> {
        self.blocks.iter().try_for_each(BlockConfig::validate)?;
        self.final_norm.iter().try_for_each(NormConfig::validate)?;
        probability("layer drop", self.layer_drop)?;
        probability("output dropout", self.output_dropout)?;
        if let Some(bias) = &self.relative_bias {
            self.blocks
                .iter()
                .try_for_each(|block| bias.validate(&block.attention))?;
        }
        self.validate_relative_embeddings()?;
        let norm = self.final_norm.iter().map(|norm| norm.d_model);
        let widths = self.blocks.iter().map(BlockConfig::d_model).chain(norm);
        let widths: Vec<usize> = widths.collect();
        if widths.iter().any(|&width| width != widths[0]) {
            return Err(Error::InvalidConfig(format!(
                "blocks and final norm have the widths {widths:?}; expected one"
            )));
        }
        check_layers(self.blocks.len(), &self.layers)
    }

    /// Checks that there is a table for the blocks of disentangled attention, and for none without them.
    fn validate_relative_embeddings(&self) -> Result<()> {
        let failed = |reason: &str| Err(Error::InvalidConfig(reason.to_string()));
        let mut is_read = false;
        for block in &self.blocks {
            if let Position::Disentangled(disentangled) = &block.attention.position {
                is_read = true;
                match &self.relative_embeddings {
                    Some(table) => table.validate(disentangled, block.d_model())?,
                    None => {
                        return failed(
                            "disentangled attention in a stack without relative embeddings; set them with \
                             with_relative_embeddings",
                        );
                    }
                }
            }
        }
        match self.relative_embeddings.is_some() && !is_read {
            true => {
                failed("relative embeddings that no block reads; expected Position::Disentangled")
            }
            false => Ok(()),
        }
    }
}

/// Refuses layers that run no block, and blocks that no layer runs: their parameters would be loaded, reported as used
/// and trained, and change nothing.
pub(crate) fn check_layers(n_blocks: usize, layers: &[usize]) -> Result<()> {
    if let Some(block) = layers.iter().find(|&&block| block >= n_blocks) {
        return Err(Error::InvalidConfig(format!(
            "a layer runs block {block}, but there are {n_blocks}"
        )));
    }
    match (0..n_blocks).find(|block| !layers.contains(block)) {
        Some(idle) => Err(Error::InvalidConfig(format!(
            "no layer runs block {idle} of {n_blocks}; name it in `layers`, or leave it out of `blocks`"
        ))),
        None => Ok(()),
    }
}
