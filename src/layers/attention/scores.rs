//! From the queries, keys and values of all heads to mixed values.

use candle_core::{Result, Tensor};

use super::{Attention, disentangled::Positions};
use crate::config::Position;
use crate::layers::mask::{Marked, check_additive};
use crate::layers::pass::Pass;
use crate::ops::{Mixing, Value, Visible};

/// What queries attend to.
pub(super) struct Attended<'a> {
    pub key: Value,
    pub value: Value,
    /// Whose keys, and how many of each sequence.
    pub keys: (Marked, usize),
    pub visible: Visible<'a>,
    /// What distances add to the scores is made of these.
    pub positions: Option<Positions>,
    /// Added to the scores.
    pub additive: Option<Tensor>,
    /// Whether that may hide keys.
    pub has_mask: bool,
}

/// Keys or values `[batch, keys, width]`, as caches keep them.
pub(super) fn rows(of: Value, batch: usize, keys: usize) -> Result<Tensor> {
    of.reshape(vec![batch, keys, of.width()])?.tensor()
}

impl Attention {
    /// The output, in the type of `x`, that queries `[.., seq, n_heads · head_dim]` of it get; added to `residual`.
    pub(super) fn attend(
        &self,
        query: &Value,
        attended: &Attended,
        pass: &Pass,
        (x, residual): (&Value, Option<&Value>),
    ) -> Result<Value> {
        let mixed = self.mix(query, attended, pass)?.to_dtype(x.dtype())?;
        self.output.apply(&mixed, residual, pass.context.train())
    }

    /// `dropout(softmax(scale · q·kᵀ + biases))·v`.
    fn mix(&self, query: &Value, attended: &Attended, pass: &Pass) -> Result<Value> {
        let config = &self.config;
        let Attended {
            key,
            value,
            keys,
            visible,
            positions,
            additive,
            has_mask,
        } = attended;
        let device = query.device();
        let mut biases = Vec::new();
        if let Position::Alibi(alibi) = &config.position {
            let key = ((*alibi, config.n_heads), *keys);
            biases.push(pass.alibi(key, visible.on_host, (query.dtype(), &device))?);
        }
        if let Some(chunk) = config.chunk {
            biases.extend(pass.chunks(chunk, visible.on_host, (query.dtype(), &device))?);
        }
        if let Some(additive) = additive {
            check_additive(additive)?;
            biases.push(additive.clone());
        }
        let sinks = self.sinks.as_ref();
        let sinks = sinks.map(|sinks| sinks.to_dtype(query.dtype()));
        let sinks = sinks.transpose()?;
        let scores = [pass.batch, config.n_heads, pass.seq, keys.1];
        let dropped = self.dropout.mask(&scores, &device, pass.context.train())?;
        let mixing = Mixing {
            batch: pass.batch,
            queries: pass.seq,
            keys: keys.1,
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
            scale: config.scale,
            soft_cap: config.soft_cap,
            biases: &biases,
            relative: positions.as_ref().map(Positions::relative),
            sinks: sinks.as_ref(),
            visible,
            has_mask: *has_mask,
            constants: &pass.constants,
            dropout: dropped.as_ref().map(|keep| (keep, self.dropout.p())),
        };
        query.attend(key, value, &mixing)
    }
}
