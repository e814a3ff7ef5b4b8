//! The configuration of Gemma 3n's and Gemma 4's parts in blocks and stacks.

use serde::{Deserialize, Serialize};

use super::{AltUpConfig, LayerInputConfig, size};
use crate::config::{BlockConfig, NormConfig, StackConfig, Topology};
use crate::error::{Error, Result};

/// The parts of a Gemma 3n or Gemma 4 block beside attention and feed-forward. By default there are none.
/// Set them in [`OwnConfig::Gemma`](crate::config::OwnConfig::Gemma).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GemmaConfig {
    /// The per-layer input, used after the feed-forward.
    pub layer_input: Option<LayerInputConfig>,
    /// Multiplies the block's output by a scalar from the checkpoint that is not trained (Gemma 4's `layer_scalar`).
    pub output_scale: bool,
    /// The rank for LAuReL (Menghani et al. 2024, <https://arxiv.org/abs/2411.07501>), a low-rank branch beside the
    /// attention sublayer: with the normalized input `n` and the attention's output `y`, `(y + n +
    /// norm(up(down(n)))) / √2` (Gemma 3n).
    pub laurel_rank: Option<usize>,
    /// The streams of alternating updates.
    pub altup: Option<AltUpConfig>,
}

impl GemmaConfig {
    pub(in crate::config) fn validate(&self, topology: Topology) -> Result<()> {
        let failed = |reason: &str| Err(Error::InvalidConfig(reason.to_string()));
        self.layer_input
            .iter()
            .try_for_each(LayerInputConfig::validate)?;
        if let Some(rank) = self.laurel_rank {
            size("laurel_rank", rank)?;
            if topology != Topology::Sequential {
                return failed("laurel_rank in a parallel block; expected Topology::Sequential");
            }
        }
        let Some(altup) = self.altup else {
            return Ok(());
        };
        altup.validate()?;
        if self.layer_input.is_none() || self.output_scale {
            return failed(
                "altup requires layer_input and no output_scale; set layer_input, or remove altup",
            );
        }
        Ok(())
    }
}

impl StackConfig {
    /// Returns the alternating updates' configuration, which all blocks share.
    ///
    /// # Errors
    /// If blocks have different configurations.
    pub(crate) fn altup(&self) -> Result<Option<AltUpConfig>> {
        let mut each = self.blocks.iter().map(|block| block.own.gemma()?.altup);
        let first = each.next().flatten();
        match each.find(|altup| *altup != first) {
            None => Ok(first),
            Some(other) => Err(Error::InvalidConfig(format!(
                "blocks have the streams {first:?} and {other:?}; expected the same in all"
            ))),
        }
    }

    /// Checks that all blocks read a per-layer input with the norm's width, or none without a norm.
    pub(in crate::config) fn validate_layer_inputs(&self) -> Result<()> {
        self.layer_inputs
            .iter()
            .try_for_each(NormConfig::validate)?;
        let width = self.layer_inputs.map(|norm| norm.d_model);
        let of_block = |block: &BlockConfig| Some(block.own.gemma()?.layer_input?.width);
        match self.blocks.iter().find(|block| of_block(block) != width) {
            None => Ok(()),
            Some(block) => Err(Error::InvalidConfig(format!(
                "a block reads a per-layer input of width {:?}, but the stack computes width {width:?}; expected the same",
                of_block(block)
            ))),
        }
    }
}
