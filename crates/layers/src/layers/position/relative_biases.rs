//! The learned relative position biases of a stack.

use candle_core::Result;

use super::RelativeBias;
use crate::config::{BlockConfig, RelativeBiasSpan, StackConfig};
use crate::layers::ParameterSource;

/// The relative position biases of a stack: none, one that all blocks share, or one for each block.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct RelativeBiases(Vec<RelativeBias>);

impl RelativeBiases {
    /// Creates `relative_bias`, or `blocks.{i}.relative_bias` for each block, from `vb`.
    pub fn new(config: &StackConfig, vb: &ParameterSource) -> Result<Self> {
        let Some(bias) = &config.relative_bias else {
            return Ok(Self(vec![]));
        };
        let blocks = config.blocks.iter().enumerate();
        let biases = match config.relative_bias_span {
            RelativeBiasSpan::Stack => blocks
                .take(1)
                .map(|(_, block)| (block, vb.clone()))
                .collect(),
            RelativeBiasSpan::Block => blocks
                .map(|(i, block)| (block, vb.pp("blocks").pp(i)))
                .collect::<Vec<_>>(),
        };
        let get = |(block, vb): (&BlockConfig, ParameterSource)| {
            RelativeBias::new(bias, block.attention()?.visibility, vb.pp("relative_bias"))
        };
        Ok(Self(biases.into_iter().map(get).collect::<Result<_>>()?))
    }

    /// Returns all biases.
    pub fn as_slice(&self) -> &[RelativeBias] {
        &self.0
    }

    /// Returns the bias that all blocks share.
    pub fn shared(&self) -> Option<&RelativeBias> {
        self.0.first().filter(|_| self.0.len() == 1)
    }

    /// Returns the bias of a single block.
    pub fn own(&self, block: usize) -> Option<&RelativeBias> {
        self.0.get(block).filter(|_| self.0.len() > 1)
    }

    /// Returns the biases with other tables of the same shapes.
    pub fn try_map(&self, map: impl FnMut(&RelativeBias) -> Result<RelativeBias>) -> Result<Self> {
        Ok(Self(self.0.iter().map(map).collect::<Result<_>>()?))
    }
}
