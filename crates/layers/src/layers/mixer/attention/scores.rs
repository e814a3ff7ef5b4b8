//! Attention scores and the weighted sum of values.

use candle_core::{Result, Tensor};

use super::{Attention, relative::DistanceTerms};
use crate::config::{OutputGate, OutputGateSpan, Position};
use crate::layers::mask::{KeySource, check_additive};
use crate::layers::pass::Pass;
use crate::ops::{BiasTensor, Mixing, Value, Visible};

/// The keys and values for a set of queries, with masks and biases.
pub(super) struct Attended<'a> {
    pub key: Value,
    pub value: Value,
    /// The kind of keys, and their number in each sequence.
    pub keys: (KeySource, usize),
    pub visible: Visible<'a>,
    /// The scores by distance from the stack's table.
    pub relative: Option<DistanceTerms>,
    /// Added to the scores.
    pub added: Vec<BiasTensor>,
    /// True if the additive mask may hide keys.
    pub has_mask: bool,
}

/// Reshapes keys or values to `[batch, keys, width]`, the layout of caches.
pub(super) fn rows(of: Value, batch: usize, keys: usize) -> Result<Tensor> {
    of.reshape(vec![batch, keys, of.width()])?.tensor()
}

impl Attention {
    /// Computes the output for queries `[.., seq, n_heads · head_dim]`, in the dtype of `x`, and adds it to
    /// `residual`.
    pub(super) fn attend(
        &self,
        query: &Value,
        attended: &Attended,
        pass: &Pass,
        x: &Value,
        residual: Option<&Value>,
    ) -> Result<Value> {
        let mixed = self.mix(query, attended, pass)?.to_dtype(x.dtype())?;
        let train = pass.context.train();
        let mixed = match (&self.gate, self.config.output_gate) {
            (Some(linear), Some(OutputGate { activation, span })) => {
                let gate = linear.apply(x, None, train)?;
                match span {
                    OutputGateSpan::Channel => gate.gate(&mixed, activation, None)?,
                    OutputGateSpan::Head => {
                        let (dims, width) = (mixed.dims().to_vec(), self.config.value_dim());
                        let heads = mixed.width() / width * pass.batch * pass.seq;
                        let gate = gate.activate(activation)?.reshape(vec![heads, 1])?;
                        let mixed = mixed.reshape(vec![heads, width])?;
                        mixed.times_column(&gate)?.reshape(dims)?
                    }
                }
            }
            _ => mixed,
        };
        let mixed = match &self.sub_norm {
            Some(norm) => norm.apply(&mixed)?,
            None => mixed,
        };
        self.output.apply(&mixed, residual, train)
    }

    /// Computes `dropout(softmax(scale · q·kᵀ + biases))·v`.
    fn mix(&self, query: &Value, attended: &Attended, pass: &Pass) -> Result<Value> {
        let config = &self.config;
        let Attended {
            key,
            value,
            keys,
            visible,
            relative,
            added,
            has_mask,
        } = attended;
        let device = query.device();
        let mut biases = Vec::new();
        if let Position::Alibi(alibi) = &config.position {
            let key = ((*alibi, config.n_heads), *keys);
            biases.push(pass.alibi(key, visible.on_host, (query.dtype(), &device))?);
        }
        if let Some(chunk) = config.chunk {
            let hidden = pass.chunks(chunk, visible.on_host, (query.dtype(), &device))?;
            biases.extend(hidden.map(BiasTensor::by_score));
        }
        for bias in added {
            check_additive(&bias.tensor)?;
            biases.push(bias.clone());
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
            relative: relative.as_ref().map(DistanceTerms::relative),
            sinks: sinks.as_ref(),
            visible,
            has_mask: *has_mask,
            constants: &pass.constants,
            dropout: dropped.as_ref().map(|keep| (keep, self.dropout.p())),
        };
        query.attend(key, value, &mixing)
    }
}
