//! The intermediate results of a block.

use candle_core::{D, DType, Result, Tensor};

use crate::config::AltUpConfig;
use crate::layers::SublayerStages;

/// The intermediate results of a block. [`Stack::observe`](crate::Stack::observe) passes them to its callback.
#[derive(Clone, Debug)]
pub struct BlockStages {
    /// The mixer's sublayer, usually self-attention.
    pub attention: SublayerStages,
    /// The cross-attention sublayer, if the block has one.
    pub cross_attention: Option<SublayerStages>,
    /// The feed-forward sublayer.
    pub feed_forward: SublayerStages,
    /// The per-layer input's sublayer, if the block has one.
    pub layer_input: Option<SublayerStages>,
    /// The block's output. With AltUp, the output of the active stream.
    output: Tensor,
    /// The next block's input.
    hidden: Tensor,
}

impl BlockStages {
    /// Returns the last sublayer's output, times the block's output scale if it has one. For a block with AltUp
    /// streams, returns the active stream.
    pub fn output(&self) -> &Tensor {
        &self.output
    }

    /// Creates the stages from a block's sublayers and its output.
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
            hidden: output.clone(),
            output,
        }
    }

    /// Returns the stages of a block whose output holds AltUp streams side by side.
    pub(crate) fn of_streams(mut self, altup: &AltUpConfig) -> Result<Self> {
        let width = self.hidden.dim(D::Minus1)? / altup.n_streams.max(1);
        let active = self.hidden.narrow(D::Minus1, altup.active * width, width)?;
        self.output = active.contiguous()?;
        Ok(self)
    }

    /// Returns the stages in another dtype.
    pub(crate) fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let sublayer = |of: &SublayerStages| -> Result<SublayerStages> {
            Ok(SublayerStages {
                input: of.input.to_dtype(dtype)?,
                inner_output: of.inner_output.to_dtype(dtype)?,
                output: of.output.to_dtype(dtype)?,
            })
        };
        Ok(Self {
            attention: sublayer(&self.attention)?,
            cross_attention: self.cross_attention.as_ref().map(sublayer).transpose()?,
            feed_forward: sublayer(&self.feed_forward)?,
            layer_input: self.layer_input.as_ref().map(sublayer).transpose()?,
            output: self.output.to_dtype(dtype)?,
            hidden: self.hidden.to_dtype(dtype)?,
        })
    }

    /// Returns the next block's input: the output, or all AltUp streams side by side.
    pub(crate) fn hidden(&self) -> &Tensor {
        &self.hidden
    }
}
