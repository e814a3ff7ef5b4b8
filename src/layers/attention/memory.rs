//! Attention to an encoder's output.

use candle_core::{Result, Tensor, bail};

use super::{Attention, QueryKeyValue, batch_and_seq, heads::Role};
use crate::{
    layers::{ForwardContext, Linear, kv_cache::LayerCache, mask::Marked},
    ops::Visible,
};

impl Attention {
    /// Attention to the context's memory, whose keys and values the cache keeps. The memory has no order of its own here:
    /// rotary embedding, visibility and window of the configuration do not apply.
    pub(in crate::layers) fn attend_memory(
        &self,
        x: &Tensor,
        context: &ForwardContext,
        cache: Option<&mut LayerCache>,
    ) -> Result<Tensor> {
        let (batch, seq) = batch_and_seq(x)?;
        self.check_norms()?;
        let train = context.train();
        let Some(memory) = context.memory() else {
            bail!(
                "cross-attention: no encoder_hidden_states given; see ForwardContext::with_memory"
            )
        };
        let QueryKeyValue::Separate { query, key, value } = &self.projections else {
            bail!("cross-attention needs separate projections of query, key and value")
        };
        let (memory_batch, keys) = batch_and_seq(&memory.hidden_states)?;
        if memory_batch != batch {
            bail!("encoder_hidden_states: a batch of {memory_batch}, expected {batch}");
        }
        Marked::Memory.check(memory.mask.keep(), batch, keys)?;
        let query = self.heads(&query.forward_t(x, train)?, (batch, seq), Role::Query)?;
        let project = || -> Result<(Tensor, Tensor)> {
            let heads = |linear: &Linear, role| {
                let projected = linear.forward_t(&memory.hidden_states, train)?;
                self.heads(&projected, (batch, keys), role)
            };
            Ok((heads(key, Role::Key)?, heads(value, Role::Value)?))
        };
        let (key, value) = match cache {
            None => project()?,
            Some(cache) => match cache.known_memory(batch, keys)? {
                Some(known) => known.clone(),
                None => cache.keep_memory(project()?),
            },
        };
        let visible = Visible {
            keep: memory.mask.keep(),
            ..Visible::default()
        };
        let additive = memory.mask.additive();
        let mixed = self.mix(&query, &key, &value, additive, &visible, train)?;
        self.merge(mixed, x, train)
    }
}
