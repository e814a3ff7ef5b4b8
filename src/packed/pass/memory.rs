//! An encoder's output and its masks, as cross-attention takes them.

use candle_core::{Result, Tensor, bail};

use super::Additive;
use crate::layers::{ForwardContext, Marked, batch_and_seq};

/// What every cross-attention of a pass attends to.
pub(in crate::packed) struct PassMemory {
    /// `[batch, keys, d_memory]`.
    pub hidden_states: Tensor,
    pub keys: usize,
    /// `[batch, keys]`, 1 = keep.
    pub keep: Option<Tensor>,
    pub keep_elements: Option<Vec<u8>>,
    /// Added to the scores of every block.
    pub additive: Option<Additive>,
}

impl PassMemory {
    /// # Errors
    /// If the context has none, or it is of another batch than the pass or its mask of other positions.
    pub fn new(context: &ForwardContext, batch: usize) -> Result<Self> {
        let Some(memory) = context.memory() else {
            bail!(
                "cross-attention: no encoder_hidden_states given; see ForwardContext::with_memory"
            )
        };
        let (memory_batch, keys) = batch_and_seq(&memory.hidden_states)?;
        if memory_batch != batch {
            bail!("encoder_hidden_states: a batch of {memory_batch}, expected {batch}");
        }
        Marked::Memory.check(memory.mask.keep(), batch, keys)?;
        let keep = memory.mask.keep();
        let elements = keep.map(|keep| keep.flatten_all()?.to_vec1());
        Ok(Self {
            hidden_states: memory.hidden_states.clone(),
            keys,
            keep: keep.cloned(),
            keep_elements: elements.transpose()?,
            additive: memory.mask.additive().map(Additive::new).transpose()?,
        })
    }
}
