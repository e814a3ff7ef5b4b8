//! The configuration of stacks: blocks and their shared parts.

use serde::{Deserialize, Serialize};

use super::{
    AttentionConfig, BlockConfig, Distances, NormConfig, RelativeBiasConfig, RelativeBiasSpan,
    RelativeEmbeddingsConfig, Visibility, probability, setters,
};
use crate::error::{Error, Result};

/// The configuration of a stack: a sequence of blocks and their shared parts. Pass it to [`Stack::new`](crate::Stack::new).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct StackConfig {
    /// The distinct blocks.
    pub blocks: Vec<BlockConfig>,
    /// For each layer, the index of its block. ALBERT runs one block many times. Every block must run at least once.
    pub layers: Vec<usize>,
    /// The norm after the last block.
    pub final_norm: Option<NormConfig>,
    /// The learned relative position bias.
    pub relative_bias: Option<RelativeBiasConfig>,
    /// The blocks that share a table for the relative position bias.
    #[serde(default)]
    pub relative_bias_span: RelativeBiasSpan,
    /// The table of relative embeddings, shared by all blocks with disentangled attention or a gated bias.
    #[serde(default)]
    pub relative_embeddings: Option<RelativeEmbeddingsConfig>,
    /// The norm for per-layer inputs, with the width of one input. Let `x` be the stack's input and `w` the layer's
    /// part of the word rows. The layer's input is then `(norm(projection(x) / √d_model) + w) / √2`, or only the
    /// norm if no words are given (Gemma 3n and 4).
    #[serde(default)]
    pub layer_inputs: Option<NormConfig>,
    /// The probability of skipping a whole layer in training (LayerDrop, Fan et al. 2019,
    /// <https://arxiv.org/abs/1909.11556>). The first layer is never skipped in a stack whose blocks have a gated bias.
    #[serde(default)]
    pub layer_drop: f64,
    /// The dropout probability for the stack's output, after the final norm (T5).
    #[serde(default)]
    pub output_dropout: f64,
}

impl StackConfig {
    /// Returns a stack that runs each block once, in order.
    pub fn new(blocks: Vec<BlockConfig>, final_norm: Option<NormConfig>) -> Self {
        Self {
            layers: (0..blocks.len()).collect(),
            blocks,
            final_norm,
            relative_bias: None,
            relative_bias_span: RelativeBiasSpan::Stack,
            relative_embeddings: None,
            layer_inputs: None,
            layer_drop: 0.0,
            output_dropout: 0.0,
        }
    }

    /// Returns a stack of `n_blocks` blocks with the same configuration.
    pub fn uniform(block: BlockConfig, n_blocks: usize, final_norm: Option<NormConfig>) -> Self {
        Self::new(vec![block; n_blocks], final_norm)
    }

    /// Changes each block's configuration with a function that takes its index.
    pub fn with_each(mut self, mut change: impl FnMut(usize, &mut BlockConfig)) -> Self {
        for (i, block) in self.blocks.iter_mut().enumerate() {
            change(i, block);
        }
        self
    }

    /// Changes each block's self-attention with a function that takes the block's index. Blocks with another mixer
    /// stay as they are.
    pub fn with_each_attention(self, mut change: impl FnMut(usize, &mut AttentionConfig)) -> Self {
        self.with_each(|i, block| {
            if let Ok(attention) = block.attention_mut() {
                change(i, attention);
            }
        })
    }

    /// Lets the last `n` layers attend to an earlier layer's keys and values: the last layer before them with the
    /// same head count, head width and visible keys. If there is none, [`Self::validate`] fails.
    pub fn with_shared_keys(self, n: usize) -> Self {
        let own = self.blocks.len().saturating_sub(n);
        let kind = |of: &AttentionConfig| {
            (
                of.n_kv_heads,
                of.head_dim,
                of.visibility,
                of.window,
                of.chunk,
            )
        };
        let kinds: Vec<_> = self
            .blocks
            .iter()
            .map(|block| block.attention().ok().map(kind))
            .collect();
        self.with_each_attention(|i, attention| {
            if i >= own {
                let of = kinds[..own].iter().rposition(|of| *of == kinds[i]);
                attention.shared_keys = Some(of.unwrap_or(i));
                attention.values_are_keys = false;
            }
        })
    }

    /// Makes every block's attention causal, and adds cross-attention with the same configuration over an encoder's
    /// whole output.
    #[doc(hidden)]
    pub fn into_decoder(self) -> Self {
        self.with_each(|_, block| {
            if let Ok(attention) = block.attention_mut() {
                attention.visibility = Visibility::Causal;
                let cross = attention.clone();
                block.cross_attention = Some(cross.with_visibility(Visibility::Bidirectional));
            }
        })
    }

    setters! {
        /// Sets the index of each layer's block.
        with_layers(layers: Vec<usize>) => layers = layers;
        /// Sets the relative position bias.
        with_relative_bias(bias: RelativeBiasConfig) => relative_bias = Some(bias);
        /// Sets the blocks that share a table for the relative position bias. By default all do.
        with_relative_bias_span(span: RelativeBiasSpan) => relative_bias_span = span;
        /// Sets the table of relative embeddings for blocks with disentangled attention.
        with_relative_embeddings(table: RelativeEmbeddingsConfig) => relative_embeddings = Some(table);
        /// Sets the norm for per-layer inputs.
        with_layer_inputs(norm: Option<NormConfig>) => layer_inputs = norm;
        /// Sets the probability of skipping a layer in training.
        with_layer_drop(p: f64) => layer_drop = p;
        /// Sets the dropout probability for the output.
        with_output_dropout(p: f64) => output_dropout = p;
    }

    /// Sets drop path probabilities that rise linearly from 0 in the first block to `rate` in the last,
    /// `torch.linspace(0, rate, n_blocks)`, as in Huang et al. 2016 and timm's models.
    pub fn with_rising_drop_path(self, rate: f64) -> Self {
        let last = self.blocks.len().saturating_sub(1).max(1);
        self.with_each(|i, block| block.residual.drop_path = rate * i as f64 / last as f64)
    }

    /// Checks every block, the final norm, the relative bias, that every layer runs an existing block, and that
    /// every block runs.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] names the wrong setting and says what is expected.
    pub fn validate(&self) -> Result<()> {
        self.blocks.iter().try_for_each(BlockConfig::validate)?;
        self.final_norm.iter().try_for_each(NormConfig::validate)?;
        probability("layer drop", self.layer_drop)?;
        probability("output dropout", self.output_dropout)?;
        if let Some(bias) = &self.relative_bias {
            let mut attentions = self.blocks.iter().flat_map(BlockConfig::attention);
            attentions.try_for_each(|attention| bias.validate(attention))?;
        }
        self.validate_relative_embeddings()?;
        self.validate_layer_inputs()?;
        self.altup()?;
        self.validate_transformers()?;
        check_shared_keys(&self.blocks, &self.layers)?;
        let shares = self
            .blocks
            .iter()
            .any(|block| block.facts().shares_from.is_some());
        if shares && self.layer_drop > 0.0 {
            return Err(Error::InvalidConfig(
                "a layer whose keys others attend to is never skipped; set layer_drop to 0"
                    .to_string(),
            ));
        }
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

    /// Returns the table by distance that blocks read, if any does.
    pub(crate) fn distances(&self) -> Option<Distances> {
        let mut attentions = self.blocks.iter().flat_map(BlockConfig::attention);
        attentions.find_map(|attention| attention.position.distances())
    }

    /// Checks that the stack has a table of relative embeddings if and only if blocks read one.
    fn validate_relative_embeddings(&self) -> Result<()> {
        let failed = |reason: &str| Err(Error::InvalidConfig(reason.to_string()));
        let mut is_read = false;
        for block in &self.blocks {
            if let Ok(attention) = block.attention()
                && let Some(read) = attention.position.distances()
            {
                is_read = true;
                match &self.relative_embeddings {
                    Some(table) => table.validate(&read, block.d_model())?,
                    None => {
                        return failed(
                            "disentangled attention or a gated bias in a stack without relative embeddings; set them with \
                             with_relative_embeddings",
                        );
                    }
                }
            }
        }
        match self.relative_embeddings.is_some() && !is_read {
            true => failed(
                "relative embeddings that no block reads; expected Position::Disentangled or Position::GatedBias",
            ),
            false => Ok(()),
        }
    }
}

/// Refuses layers that run no block, and blocks that no layer runs: their parameters would be loaded, reported as
/// used and trained, without effect.
fn check_layers(n_blocks: usize, layers: &[usize]) -> Result<()> {
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

/// Refuses layers that attend to the keys of a later layer, or of one with other heads or visible keys.
fn check_shared_keys(blocks: &[BlockConfig], layers: &[usize]) -> Result<()> {
    let failed = |reason: String| Err(Error::InvalidConfig(reason));
    for (layer, block) in blocks.iter().enumerate() {
        let Some(of) = block.facts().shares_from else {
            continue;
        };
        if !layers.iter().copied().eq(0..blocks.len()) {
            let reason = "layers that share keys run once each, in order";
            return failed(reason.to_string());
        }
        let own = block.attention()?;
        let with = blocks[..layer].get(of);
        let with = with.and_then(|with| with.attention().ok());
        let Some(with) = with.filter(|with| with.shared_keys.is_none()) else {
            return failed(format!(
                "layer {layer} attends to the keys of layer {of}; expected an earlier one that has its own"
            ));
        };
        let sizes = |of: &AttentionConfig| (of.n_kv_heads, of.head_dim, of.latent);
        let reach = |of: &AttentionConfig| (of.visibility, of.window, of.chunk);
        if sizes(own) != sizes(with) || reach(own) != reach(with) {
            return failed(format!(
                "layer {layer} attends to the keys of layer {of}, which has other heads or shows others; expected equal \
                 key/value heads, visibility, window and chunk"
            ));
        }
    }
    Ok(())
}
