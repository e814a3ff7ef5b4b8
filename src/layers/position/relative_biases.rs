//! The learned relative position biases of a stack.

use candle_core::{Result, bail};
use candle_nn::VarBuilder;

use super::RelativeBias;
use crate::config::{BlockConfig, RelativeBiasSpan, StackConfig};

/// None, one that all blocks share, or one for each block.
#[derive(Clone, Debug)]
pub(crate) struct RelativeBiases(Vec<RelativeBias>);

impl RelativeBiases {
    /// Gets `relative_bias`, or `blocks.{i}.relative_bias` for each block, from `vb`.
    pub fn new(config: &StackConfig, vb: &VarBuilder) -> Result<Self> {
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
        let get = |(block, vb): (&BlockConfig, VarBuilder)| {
            RelativeBias::new(bias, block.attention.visibility, vb.pp("relative_bias"))
        };
        Ok(Self(biases.into_iter().map(get).collect::<Result<_>>()?))
    }

    /// Takes those of blocks with so many heads.
    ///
    /// # Errors
    /// If there are neither none nor one nor as many as blocks, or they are of other numbers of heads.
    pub fn from_parts(biases: Vec<RelativeBias>, n_heads: &[usize]) -> Result<Self> {
        let (n_biases, n_blocks) = (biases.len(), n_heads.len());
        if ![0, 1, n_blocks].contains(&n_biases) {
            bail!(
                "stack: {n_biases} relative biases for {n_blocks} blocks, expected one for all or one for each"
            );
        }
        let biases = Self(biases);
        for (block, n_heads) in n_heads.iter().enumerate() {
            let bias = biases.shared().or(biases.own(block));
            let biased = bias.map(|bias| bias.table().dims()[1]);
            if let Some(biased) = biased.filter(|biased| biased != n_heads) {
                bail!("stack: a relative bias of {biased} heads for a block of {n_heads}");
            }
        }
        Ok(biases)
    }

    /// All of them.
    pub fn as_slice(&self) -> &[RelativeBias] {
        &self.0
    }

    /// That of all blocks.
    pub fn shared(&self) -> Option<&RelativeBias> {
        self.0.first().filter(|_| self.0.len() == 1)
    }

    /// That of a block alone.
    pub fn own(&self, block: usize) -> Option<&RelativeBias> {
        self.0.get(block).filter(|_| self.0.len() > 1)
    }

    /// The same with other tables of the same shapes.
    pub fn try_map(&self, map: impl FnMut(&RelativeBias) -> Result<RelativeBias>) -> Result<Self> {
        Ok(Self(self.0.iter().map(map).collect::<Result<_>>()?))
    }
}
