//! The configuration of blocks: sublayers, norms and residual connections.

use serde::{Deserialize, Serialize};

use super::{
    AttentionConfig, FeedForwardConfig, FeedForwardForm, MixerConfig, MixerFacts, NormConfig,
    OwnConfig, finite, probability, setters,
};
use crate::error::{Error, Result};

/// The position of a sublayer's norm.
/// Set it in [`BlockConfig::attention_placement`](crate::BlockConfig::attention_placement).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// The residual: the value that a sublayer's output is added to.
/// Set it in [`ResidualConfig::source`](crate::config::ResidualConfig::source).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResidualSource {
    /// The sublayer's input.
    Input,
    /// The sublayer's normalized input (BLOOM's `apply_residual_connection_post_layernorm`).
    Normalized,
}

/// The configuration of a block's residual connections. Set it in [`BlockConfig::residual`](crate::BlockConfig::residual).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct ResidualConfig {
    /// The residual that a sublayer's output is added to.
    pub source: ResidualSource,
    /// The factor on the residual (MiniMax's `alpha`).
    #[serde(default = "super::one")]
    pub carry: f64,
    /// The factor on a sublayer's output (Granite's `residual_multiplier`).
    pub multiplier: f64,
    /// Multiplies a sublayer's output by a learned vector: layer scale (Touvron et al. 2021,
    /// <https://arxiv.org/abs/2103.17239>).
    pub layer_scale: bool,
    /// The dropout probability for the attention's output.
    pub attention_dropout: f64,
    /// The dropout probability for the feed-forward's output.
    pub feed_forward_dropout: f64,
    /// The probability of dropping a sublayer's whole output for a sample in training (drop path or stochastic
    /// depth, Huang et al. 2016, <https://arxiv.org/abs/1603.09382>).
    #[serde(default)]
    pub drop_path: f64,
}

impl Default for ResidualConfig {
    fn default() -> Self {
        Self {
            source: ResidualSource::Input,
            carry: 1.0,
            multiplier: 1.0,
            layer_scale: false,
            attention_dropout: 0.0,
            feed_forward_dropout: 0.0,
            drop_path: 0.0,
        }
    }
}

/// The norms in a parallel block. Set them in [`Topology::Parallel`](crate::Topology::Parallel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParallelNorm {
    /// One norm for both branches (GPT-J, Phi, Falcon 7B, Cohere).
    Shared,
    /// One norm per branch (GPT-NeoX, Falcon 40B).
    Separate,
}

/// The order of attention and feed-forward: in sequence or in parallel.
/// Set it in [`BlockConfig::topology`](crate::BlockConfig::topology).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Topology {
    /// The feed-forward takes the attention sublayer's output.
    Sequential,
    /// Both take the block's normalized input, and both outputs are added to it.
    Parallel(ParallelNorm),
}

/// The configuration of a transformer block: attention and feed-forward, each with a residual connection.
/// Pass it to [`TransformerBlock::new`](crate::TransformerBlock::new).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct BlockConfig {
    /// The mixer, usually self-attention.
    #[serde(flatten)]
    pub mixer: MixerConfig,
    /// Cross-attention to an encoder's output, between self-attention and feed-forward.
    pub cross_attention: Option<AttentionConfig>,
    /// The feed-forward.
    pub feed_forward: FeedForwardConfig,
    /// The norm for every sublayer.
    pub norm: NormConfig,
    /// The position of the norm in attention sublayers.
    pub attention_placement: NormPlacement,
    /// The position of the norm in the feed-forward sublayer.
    pub feed_forward_placement: NormPlacement,
    /// Sequential or parallel sublayers.
    pub topology: Topology,
    /// The residual connections.
    pub residual: ResidualConfig,
    /// The parts that only one family's blocks have.
    #[serde(flatten)]
    pub own: OwnConfig,
}

impl BlockConfig {
    /// Returns a sequential block with every norm at `placement` and without dropout.
    pub fn new(
        mixer: impl Into<MixerConfig>,
        feed_forward: FeedForwardConfig,
        norm: NormConfig,
        placement: NormPlacement,
    ) -> Self {
        Self {
            mixer: mixer.into(),
            cross_attention: None,
            feed_forward,
            norm,
            attention_placement: placement,
            feed_forward_placement: placement,
            topology: Topology::Sequential,
            residual: ResidualConfig::default(),
            own: OwnConfig::None,
        }
    }

    /// Returns a block that is a mixer alone, with its norm before it.
    pub fn of_mixer(mixer: impl Into<MixerConfig>, norm: NormConfig) -> Self {
        Self {
            feed_forward_placement: NormPlacement::None,
            ..Self::new(
                mixer,
                FeedForwardConfig::absent(norm.d_model),
                norm,
                NormPlacement::Pre,
            )
        }
    }

    /// Returns a block that is a feed-forward alone, with its norm before it.
    pub fn of_feed_forward(feed_forward: FeedForwardConfig, norm: NormConfig) -> Self {
        Self {
            attention_placement: NormPlacement::None,
            ..Self::new(
                MixerConfig::absent(norm.d_model),
                feed_forward,
                norm,
                NormPlacement::Pre,
            )
        }
    }

    setters! {
        /// Adds cross-attention to an encoder's output.
        with_cross_attention(attention: AttentionConfig) => cross_attention = Some(attention);
        /// Sets sequential or parallel sublayers.
        with_topology(topology: Topology) => topology = topology;
        /// Sets the residual connections.
        with_residual(residual: ResidualConfig) => residual = residual;
        /// Sets the parts that only one family's blocks have.
        with_own(own: OwnConfig) => own = own;
    }

    /// Returns the norm for sublayers' outputs.
    pub(crate) fn output_norm(&self) -> NormConfig {
        match self.own {
            OwnConfig::MuseGlimmer { output_norm_eps } => NormConfig {
                eps: output_norm_eps,
                ..self.norm
            },
            _ => self.norm,
        }
    }

    /// Sets the dropout probability for every sublayer's output.
    pub fn with_residual_dropout(mut self, p: f64) -> Self {
        self.residual.attention_dropout = p;
        self.residual.feed_forward_dropout = p;
        self
    }

    /// Returns the width of the input and the output.
    pub fn d_model(&self) -> usize {
        self.mixer.facts().d_model
    }

    /// Returns the properties of the mixer that other parts of a model depend on.
    pub fn facts(&self) -> MixerFacts {
        let shared = self.own.transformer();
        self.mixer.facts().after(shared.map(|of| &of.attention))
    }

    /// Returns the self-attention.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the mixer is of another kind.
    pub fn attention(&self) -> Result<&AttentionConfig> {
        self.mixer.attention()
    }

    /// Returns the self-attention, to change it.
    ///
    /// # Errors
    /// Same as [`Self::attention`].
    pub fn attention_mut(&mut self) -> Result<&mut AttentionConfig> {
        self.mixer.attention_mut()
    }

    /// Checks each part, and that all parts have the same width.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] names the wrong setting and says what is expected.
    pub fn validate(&self) -> Result<()> {
        self.mixer.validate()?;
        self.feed_forward.validate()?;
        self.norm.validate()?;
        finite("the residual multiplier", self.residual.multiplier)?;
        finite("the factor on the residual", self.residual.carry)?;
        probability("residual dropout", self.residual.attention_dropout)?;
        probability("residual dropout", self.residual.feed_forward_dropout)?;
        probability("drop path", self.residual.drop_path)?;
        let mut widths = vec![self.d_model(), self.feed_forward.d_model, self.norm.d_model];
        self.own.validate(self)?;
        if let Some(cross) = &self.cross_attention {
            cross.validate()?;
            if cross.shared_keys.is_some() || cross.values_are_keys {
                return Err(Error::InvalidConfig(
                    "cross-attention takes keys and values from an encoder's output; remove shared_keys and values_are_keys"
                        .to_string(),
                ));
            }
            if cross.position.distances().is_some() {
                return Err(Error::InvalidConfig(
                    "cross-attention has no relative positions; expected a position other than Disentangled or GatedBias"
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
        self.validate_absent()?;
        if self.topology != Topology::Sequential && self.residual.carry != 1.0 {
            return Err(Error::InvalidConfig(format!(
                "a parallel block has the factor {} on its residual; expected 1, or Topology::Sequential",
                self.residual.carry
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
                "a parallel block normalizes before its branches, but the norms are placed {placements:?}; \
                 expected Pre for both"
            )));
        }
        Ok(())
    }

    /// Checks that a block without one of its two sublayers has nothing that belongs to it.
    fn validate_absent(&self) -> Result<()> {
        let has = [
            !self.mixer.is_absent(),
            self.feed_forward.form != FeedForwardForm::Absent,
        ];
        if has == [true; 2] {
            return Ok(());
        }
        let placements = [self.attention_placement, self.feed_forward_placement];
        let is_bare = |i: usize| has[i] || placements[i] == NormPlacement::None;
        let is_plain = self.topology == Topology::Sequential
            && self.cross_attention.is_none()
            && !self.residual.layer_scale
            && matches!(self.own, OwnConfig::None | OwnConfig::Zamba(_));
        if has == [false; 2] || !is_bare(0) || !is_bare(1) || !is_plain {
            return Err(Error::InvalidConfig(
                "a block of one sublayer has no second one, no norm or layer scale of it, no cross-attention and no parallel \
                 branches; use BlockConfig::of_mixer or BlockConfig::of_feed_forward"
                    .to_string(),
            ));
        }
        Ok(())
    }
}
