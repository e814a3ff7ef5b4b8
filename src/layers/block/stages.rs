//! The intermediate results of a block.

use candle_core::Tensor;

use crate::layers::SublayerStages;

/// The intermediate results of a block.
#[derive(Clone, Debug)]
pub struct BlockStages {
    /// The self-attention sublayer.
    pub attention: SublayerStages,
    /// The cross-attention sublayer, where there is one.
    pub cross_attention: Option<SublayerStages>,
    /// The feed-forward sublayer.
    pub feed_forward: SublayerStages,
    /// The sublayer of the input that the block has for itself, where there is one.
    pub layer_input: Option<SublayerStages>,
    /// The block's output.
    output: Tensor,
}

impl BlockStages {
    /// The block's output: that of the last sublayer, times the block's own factor where it has one.
    pub fn output(&self) -> &Tensor {
        &self.output
    }

    /// Stages whose last gives the block's output.
    pub(crate) fn new(
        attention: SublayerStages,
        cross_attention: Option<SublayerStages>,
        feed_forward: SublayerStages,
        layer_input: Option<SublayerStages>,
        output: Tensor,
    ) -> Self {
        Self {
            attention,
            cross_attention,
            feed_forward,
            layer_input,
            output,
        }
    }
}
