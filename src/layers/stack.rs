//! Blocks in a row, and the norm behind the last.

use candle_core::{Module, ModuleT, Result, Tensor};
use candle_nn::VarBuilder;

use crate::{
    config::StackConfig,
    layers::{BlockStages, DropoutSource, ForwardContext, Norm, TransformerBlock},
};

/// The blocks of an encoder or decoder, first to last, and its final norm where the family has one.
///
/// Names in a `VarBuilder`: `blocks.{i}.…` as [`TransformerBlock`]'s, and `final_norm`.
#[derive(Clone, Debug)]
pub struct Stack {
    blocks: Vec<TransformerBlock>,
    final_norm: Option<Norm>,
}

impl Stack {
    /// Takes every block and the final norm from `vb`.
    pub fn new(config: &StackConfig, vb: VarBuilder) -> Result<Self> {
        let blocks = config
            .blocks
            .iter()
            .enumerate()
            .map(|(i, block)| TransformerBlock::new(block, vb.pp("blocks").pp(i)))
            .collect::<Result<_>>()?;
        let final_norm = config
            .final_norm
            .as_ref()
            .map(|norm| Norm::new(norm, vb.pp("final_norm")))
            .transpose()?;
        Ok(Self { blocks, final_norm })
    }

    /// Of the blocks and the final norm themselves.
    pub fn from_parts(blocks: Vec<TransformerBlock>, final_norm: Option<Norm>) -> Self {
        Self { blocks, final_norm }
    }

    /// The blocks, first to last.
    pub fn blocks(&self) -> &[TransformerBlock] {
        &self.blocks
    }

    /// The norm behind the last block.
    pub fn final_norm(&self) -> Option<&Norm> {
        self.final_norm.as_ref()
    }

    /// Draws every dropout mask from `source` from now on, in the order of the forward pass.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        for block in &mut self.blocks {
            block.set_dropout_source(source);
        }
    }

    /// The output in evaluation with nothing masked; shapes as [`Self::forward_with`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }

    /// All blocks and the final norm: `last_hidden_state` of transformers.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]`, the embeddings, to the same. `[seq, d_model]` is one sequence.
    ///
    /// # Errors
    /// If the width is not `d_model`, the rank is above 3, or a mask does not fit.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        self.observe(x, context, |_, _| Ok(()))
    }

    /// As [`Self::forward_with`], showing every block's stages to `observer` as they come.
    pub fn observe(
        &self,
        x: &Tensor,
        context: &ForwardContext,
        mut observer: impl FnMut(usize, &BlockStages) -> Result<()>,
    ) -> Result<Tensor> {
        let mut x = x.clone();
        for (i, block) in self.blocks.iter().enumerate() {
            let stages = block.stages(&x, context)?;
            observer(i, &stages)?;
            x = stages.feed_forward.output;
        }
        match &self.final_norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        }
    }
}

impl ModuleT for Stack {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}
