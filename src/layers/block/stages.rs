//! The intermediate results of a block.

use candle_core::{D, DType, Result, Tensor};

use crate::config::AltUpConfig;
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
    /// The block's output, or that of its active stream.
    output: Tensor,
    /// What the next block reads.
    hidden: Tensor,
}

impl BlockStages {
    /// The block's output: that of the last sublayer, times the block's own factor where it has one; of a block with streams,
    /// the active one.
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
            hidden: output.clone(),
            output,
        }
    }

    /// The stages of a block whose output is these streams side by side.
    pub(crate) fn of_streams(mut self, altup: &AltUpConfig) -> Result<Self> {
        let width = self.hidden.dim(D::Minus1)? / altup.n_streams.max(1);
        let active = self.hidden.narrow(D::Minus1, altup.active * width, width)?;
        self.output = active.contiguous()?;
        Ok(self)
    }

    /// The same stages in another type.
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

    /// What the next block reads: the output, or all its streams side by side.
    pub(crate) fn hidden(&self) -> &Tensor {
        &self.hidden
    }
}
