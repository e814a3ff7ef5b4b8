//! Zamba's parts beside the mixer: transformers that blocks share.
//!
//! transformers' `Zamba2HybridLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/zamba2/modeling_zamba2.py>

use candle_core::{Result, bail};

use super::streams::{apart, side_by_side};
use crate::config::{Activation, BlockConfig, NormConfig, SharedTransformerConfig, ZambaConfig};
use crate::layers::linear::ThroughRank;
use crate::layers::state::{BlockStateMut, LayerState};
use crate::layers::visit::{Visit, parts};
use crate::layers::{Attention, Linear, Norm, ParameterSource};
use crate::layers::{packed::Packing, pass::Pass};
use crate::ops::Value;

/// A block's parts beside its mixer. [`ZambaConfig`] has the formula.
#[derive(Clone, Debug)]
pub(crate) struct ZambaParts {
    pub config: ZambaConfig,
    /// The transformer, in the block that has its parameters.
    pub transformer: Option<Box<SharedTransformer>>,
    /// `[d_model, d_model]`.
    transformer_output: Option<Linear>,
}

/// A transformer that several blocks run before their mixers.
#[derive(Clone, Debug)]
pub(crate) struct SharedTransformer {
    attention_norm: Norm,
    pub attention: Attention,
    feed_forward_norm: Norm,
    /// `[d_ff, d_model]`, as is `up`.
    gate: Linear,
    up: Linear,
    /// `[d_model, d_ff]`.
    down: Linear,
    activation: Activation,
    /// Each use's adapters, by its number; none if no use has any.
    adapters: Vec<(usize, Adapters)>,
}

/// One use's adapters.
#[derive(Clone, Debug)]
struct Adapters {
    attention: Option<AttentionAdapters>,
    gate_up: ThroughRank,
}

/// Adapters for an attention's projections.
#[derive(Clone, Debug)]
struct AttentionAdapters {
    query: ThroughRank,
    key: ThroughRank,
    value: ThroughRank,
}

parts!(ZambaParts: Self { transformer, transformer_output, .. } => [] [transformer, transformer_output]);
parts!(SharedTransformer: Self { attention, gate, up, down, adapters, .. } => [] [attention, gate, up, down, adapters]);
parts!(Adapters: Self { attention, gate_up } => [attention] [gate_up]);
parts!(AttentionAdapters: Self { query, key, value } => [] [query, key, value]);

impl ZambaParts {
    /// Creates `transformer_output` and, in the block that has them, the transformer's parameters from `vb`.
    pub fn new(own: &ZambaConfig, config: &BlockConfig, vb: &ParameterSource) -> Result<Self> {
        let d_model = config.d_model();
        let of = own.transformer.as_deref();
        let output = of.map(|_| Linear::unbiased([d_model; 2], vb.pp("transformer_output")));
        let first = of.filter(|of| !of.uses.is_empty());
        let transformer = first.map(|of| {
            let transformer = SharedTransformer::new(of, &config.norm, &vb.pp("transformer"))?;
            Ok::<_, candle_core::Error>(Box::new(transformer))
        });
        Ok(Self {
            config: own.clone(),
            transformer: transformer.transpose()?,
            transformer_output: output.transpose()?,
        })
    }

    pub fn packed(&self, packing: &Packing) -> Result<Self> {
        let mut packed = self.clone();
        if let Some(of) = &mut packed.transformer {
            **of = of.packed(&packing.at("transformer"))?;
        }
        if let Some(of) = &mut packed.transformer_output {
            *of = of.packed(&packing.at("transformer_output"))?;
        }
        Ok(packed)
    }

    /// Splits a block's state into the shared transformer's keys and values, and the mixer's own.
    pub fn split<'s>(
        &self,
        state: Option<&'s mut BlockStateMut>,
    ) -> Result<(Option<&'s mut LayerState>, Option<BlockStateMut<'s>>)> {
        let Some(BlockStateMut { mixer, encoder }) = state else {
            return Ok((None, None));
        };
        let (keys, mixer) = match self.config.transformer {
            Some(_) => {
                let (keys, mixer) = mixer.as_pair()?;
                (Some(keys), mixer)
            }
            None => (None, &mut **mixer),
        };
        Ok((keys, Some(BlockStateMut { mixer, encoder })))
    }

    /// Computes a block's output from its input beside the stack's, which stays beside it. `mix` computes the mixer's output
    /// for its norm's input, and adds it to the residual.
    pub fn around(
        &self,
        x: &Value,
        pass: &Pass,
        keys: Option<&mut LayerState>,
        mix: impl FnOnce(Value, Option<Value>) -> Result<Value>,
    ) -> Result<Value> {
        let [hidden, input] = &apart(x, 2)?[..] else {
            bail!("streams: expected two");
        };
        let y = match &self.transformer_output {
            None => mix(hidden.clone(), None)?,
            Some(output) => {
                let train = pass.context.train();
                let (transformer, number) = pass.transformer()?;
                let y = transformer.apply(x, number, pass, keys)?;
                mix(output.apply(&y, Some(hidden), train)?, Some(hidden.clone()))?
            }
        };
        side_by_side([&y, input].into_iter())
    }
}

impl SharedTransformer {
    fn new(of: &SharedTransformerConfig, norm: &NormConfig, vb: &ParameterSource) -> Result<Self> {
        let (d_model, wide) = (norm.d_model, of.attention.d_model);
        let adapted = of.uses.iter().filter(|_| of.adapter_rank.is_some());
        let adapters = adapted.map(|&number| {
            let vb = vb.pp("adapters").pp(number);
            let through = |name: &str, d_in, d_out| {
                ThroughRank::new(&vb.pp(name), [d_in, d_out], of.adapter_rank)
            };
            let (q, kv) = (of.attention.query_width(), of.attention.key_width());
            let attention = of.adapts_attention.then(|| {
                Ok::<_, candle_core::Error>(AttentionAdapters {
                    query: through("query", wide, q)?,
                    key: through("key", wide, kv)?,
                    value: through("value", wide, kv)?,
                })
            });
            let adapters = Adapters {
                attention: attention.transpose()?,
                gate_up: through("gate_up", d_model, 2 * of.d_ff)?,
            };
            Ok((number, adapters))
        });
        let wide_norm = NormConfig {
            d_model: wide,
            ..*norm
        };
        Ok(Self {
            adapters: adapters.collect::<Result<_>>()?,
            attention_norm: Norm::new(&wide_norm, vb.pp("attention_norm"))?,
            attention: Attention::with_output(&of.attention, d_model, vb.pp("attention"))?,
            feed_forward_norm: Norm::new(norm, vb.pp("feed_forward_norm"))?,
            gate: Linear::unbiased([d_model, of.d_ff], vb.pp("gate"))?,
            up: Linear::unbiased([d_model, of.d_ff], vb.pp("up"))?,
            down: Linear::unbiased([of.d_ff, d_model], vb.pp("down"))?,
            activation: of.activation,
        })
    }

    fn packed(&self, packing: &Packing) -> Result<Self> {
        let mut packed = self.clone();
        for (role, linear) in packed.linears_mut() {
            if !role.starts_with("attention.") {
                *linear = linear.packed(&packing.at(role))?;
            }
        }
        packed.attention = self.attention.packed(&packing.at("attention"))?;
        packed.attention_norm = self.attention_norm.packed()?;
        packed.feed_forward_norm = self.feed_forward_norm.packed()?;
        Ok(packed)
    }

    /// Computes the transformer's output for a block's input beside the stack's, without a residual.
    fn apply(
        &self,
        x: &Value,
        number: usize,
        pass: &Pass,
        keys: Option<&mut LayerState>,
    ) -> Result<Value> {
        let train = pass.context.train();
        let adapters = self.adapters.iter().find(|(of, _)| *of == number);
        let adapters = adapters.map(|(_, adapters)| adapters);
        if adapters.is_none() && !self.adapters.is_empty() {
            bail!("a shared transformer has no adapters of the number {number}");
        }
        let normal = self.attention_norm.apply(x)?;
        let of_attention = adapters.and_then(|of| of.attention.as_ref());
        let added = of_attention.map(|of| {
            let each = [&of.query, &of.key, &of.value].map(|of| of.apply(&normal, train));
            let [query, key, value] = each;
            side_by_side([&query?, &key?, &value?].into_iter())
        });
        let added = added.transpose()?;
        let attended = self
            .attention
            .apply(&normal, added.as_ref(), pass, keys, None)?;
        let normal = self.feed_forward_norm.apply(&attended)?;
        let added = adapters.map(|of| apart(&of.gate_up.apply(&normal, train)?, 2));
        let added = added.transpose()?;
        let half = |i: usize| added.as_ref().map(|halves| &halves[i]);
        let gate = self.gate.apply(&normal, half(0), train)?;
        let up = self.up.apply(&normal, half(1), train)?;
        let gated = gate.gate(&up, self.activation, None)?;
        self.down.apply(&gated, None, train)
    }
}
