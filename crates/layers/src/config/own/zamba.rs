//! The configuration of Zamba's shared transformers.

use serde::{Deserialize, Serialize};

use crate::config::{
    Activation, AttentionConfig, BlockConfig, NormPlacement, ResidualSource, StackConfig, Topology,
    size,
};
use crate::error::{Error, Result};

/// The parts of a Zamba block beside its mixer (Glorioso et al. 2024, <https://arxiv.org/abs/2405.16712> and
/// <https://arxiv.org/abs/2411.15242>): a transformer that several blocks share. With the stack's input `e`, a block that
/// runs one computes from its input `x`
///
/// ```text
/// a      = attention(attention_norm([x, e]))               [x, e] is twice as wide as x
/// n      = feed_forward_norm(a)
/// t      = down(activation(gate(n)) · up(n))
/// output = x + mixer(norm(x + transformer_output(t)))
/// ```
///
/// In Zamba 2, each use adds its own low-rank adapters to `gate` and `up`, and perhaps to queries, keys and values. Rows
/// have `x` and `e` side by side, as [`Stack`](crate::Stack) passes them on. Set it in
/// [`OwnConfig::Zamba`](crate::config::OwnConfig::Zamba).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ZambaConfig {
    /// The transformer that the block runs before its mixer, if any.
    pub transformer: Option<Box<SharedTransformerConfig>>,
}

/// A block's use of a shared transformer. Set it in [`ZambaConfig::transformer`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedTransformerConfig {
    /// The attention, twice as wide as the block. Its output is as wide as the block.
    pub attention: AttentionConfig,
    /// The width of the feed-forward's hidden features.
    pub d_ff: usize,
    /// The activation of the feed-forward's gate.
    pub activation: Activation,
    /// The rank of the adapters, if there are any.
    pub adapter_rank: Option<usize>,
    /// True if queries, keys and values have adapters too.
    pub adapts_attention: bool,
    /// The block that has the transformer's parameters: the first that runs it.
    pub block: usize,
    /// The number of this use among the uses of all shared transformers, by which its adapters are named.
    pub number: usize,
    /// Every use's number, in the block that has the parameters; empty in others.
    pub uses: Vec<usize>,
}

impl SharedTransformerConfig {
    /// Returns true if this is another use of the transformer of `first`.
    fn is_of(&self, first: &Self) -> bool {
        let own = Self {
            number: first.number,
            uses: first.uses.clone(),
            ..self.clone()
        };
        own == *first && first.uses.contains(&self.number)
    }
}

impl ZambaConfig {
    pub(super) fn validate(&self, block: &BlockConfig) -> Result<()> {
        let failed = |reason: String| Err(Error::InvalidConfig(reason));
        let is_plain = block.topology == Topology::Sequential
            && block.attention_placement == NormPlacement::Pre
            && block.residual.source == ResidualSource::Input;
        if !is_plain {
            let reason = "Zamba adds a shared transformer's output to the input of a mixer's norm; expected a sequential \
                          block with its norm before the mixer";
            return failed(reason.to_string());
        }
        let Some(of) = &self.transformer else {
            return Ok(());
        };
        of.attention.validate()?;
        size("the width of a shared transformer's feed-forward", of.d_ff)?;
        if let Some(rank) = of.adapter_rank {
            size("the rank of a shared transformer's adapters", rank)?;
        }
        let (found, expected) = (of.attention.d_model, 2 * block.d_model());
        if found != expected {
            return failed(format!(
                "a shared transformer's attention is {found} wide; expected {expected}, twice the block"
            ));
        }
        let attention = &of.attention;
        let makes_fewer = attention.shared_keys.is_some() || attention.values_are_keys;
        if attention.latent.is_some() || makes_fewer || attention.output_gate.is_some() {
            let reason = "a shared transformer's attention has its own queries, keys and values, and no gate";
            return failed(reason.to_string());
        }
        Ok(())
    }
}

impl StackConfig {
    /// Returns true if rows have the stack's input beside the hidden state, which Zamba's blocks need.
    pub(crate) fn carries_input(&self) -> bool {
        self.blocks.iter().any(|block| block.own.zamba().is_some())
    }

    /// Checks that each use of a shared transformer has a block with its parameters before it.
    pub(in crate::config) fn validate_transformers(&self) -> Result<()> {
        let failed = |reason: String| Err(Error::InvalidConfig(reason));
        if !self.carries_input() {
            return Ok(());
        }
        let mut others = self.blocks.iter().filter(|of| of.own.zamba().is_none());
        if others.next().is_some() || !self.layers.iter().copied().eq(0..self.blocks.len()) {
            let reason = "a Zamba block in a stack with others; expected each block to be one, and to run once, in order";
            return failed(reason.to_string());
        }
        let uses = self.blocks.iter().map(|block| block.own.transformer());
        let uses: Vec<_> = uses.collect();
        for (i, of) in uses.iter().enumerate() {
            let Some(of) = of else { continue };
            let first = uses[..=i].get(of.block).copied().flatten();
            if !first.is_some_and(|first| of.is_of(first) && first.block == of.block) {
                return failed(format!(
                    "block {i} runs the transformer of block {}, number {}; expected an earlier block with this number and \
                     the same sizes",
                    of.block, of.number
                ));
            }
        }
        Ok(())
    }
}
