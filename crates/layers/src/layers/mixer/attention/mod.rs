//! Multi-head attention: self-attention, or cross-attention to an encoder's output.

use std::sync::Arc;

use candle_blocks_kernels::memory::LargePages;
use candle_core::{ModuleT, Result, Tensor, bail};
use candle_nn::Init;

use super::{Mixer, layer::MixerLayer};
use crate::config::{AttentionConfig, LinearConfig, MixerFacts, NormConfig, getters};
use crate::layers::{Dropout, DropoutSource, ForwardContext, Linear, Norm, ParameterSource};
use crate::layers::{
    packed::Packing,
    pass::{Origin, Pass},
    state::LayerState,
    visit::parts,
};
use crate::ops::Value;

mod cross;
mod disentangled;
mod gated_bias;
mod latent;
mod own;
mod packed;
mod query_key_norm;
mod relative;
mod scores;

use disentangled::PositionLinears;
use gated_bias::BiasGate;
pub use latent::LatentProjections;
use packed::PackedAttention;
pub(crate) use query_key_norm::QueryKeyNorms;

/// The input projections of an [`Attention`]. [`Attention::projections`](crate::Attention::projections) returns it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum QueryKeyValue {
    /// One projection each.
    Separate {
        /// `[n_heads · head_dim, d_model]`.
        query: Linear,
        /// `[n_kv_heads · head_dim, d_encoder]`.
        key: Linear,
        /// `[n_kv_heads · head_dim, d_encoder]`.
        value: Linear,
    },
    /// A single projection whose output rows are query, key and value, in this order.
    Fused(Linear),
    /// Projections through a latent, from which keys and values are computed: [`AttentionConfig::latent`].
    Latent(Box<LatentProjections>),
    /// Only a query projection, `[n_heads · head_dim, d_model]`. The keys and values are those of an earlier layer:
    /// [`AttentionConfig::shared_keys`].
    Query(Linear),
    /// A query projection and a key projection. The keys are also the values: [`AttentionConfig::values_are_keys`].
    QueryKey {
        /// `[n_heads · head_dim, d_model]`.
        query: Linear,
        /// `[n_kv_heads · head_dim, d_model]`.
        key: Linear,
    },
}

parts!(QueryKeyValue:
    Self::Separate { query, key, value } => [] [query, key, value],
    Self::Fused(query_key_value) => [] [query_key_value],
    Self::Latent(latent) => [latent] [],
    Self::Query(query) => [] [query],
    Self::QueryKey { query, key } => [] [query, key]);

/// Multi-head attention: `output(softmax(scale · q·kᵀ + mask)·v)` per head (Vaswani et al. 2017,
/// <https://arxiv.org/abs/1706.03762>), with grouped key/value heads (Ainslie et al. 2023,
/// <https://arxiv.org/abs/2305.13245>) and every other option of [`AttentionConfig`].
///
/// A sink is one more score in a softmax, without a value. Between its projections, a layer without sinks equals
/// `torch.nn.functional.scaled_dot_product_attention`, except that a query whose keys are all masked gives zeros
/// rather than NaN.
#[derive(Clone, Debug)]
pub struct Attention {
    projections: QueryKeyValue,
    /// `[n_heads · head_dim, d_model]`, or `[n_heads, d_model]`.
    gate: Option<Linear>,
    /// Normalizes the rows that `output` reads, `[n_heads · value_dim]`.
    sub_norm: Option<Norm>,
    output: Linear,
    pub(crate) norms: Option<QueryKeyNorms>,
    positions: PositionLinears,
    position_dropout: Dropout,
    bias_gate: Option<BiasGate>,
    /// `[n_heads]`.
    sinks: Option<Tensor>,
    dropout: Dropout,
    config: AttentionConfig,
    /// The packed weights, in a packed layer. The linear layers then hold only shapes and biases.
    pub(crate) packed: Option<Arc<PackedAttention>>,
}

impl Attention {
    /// Creates the layer with parameters from `vb`: `query`, `key` and `value` (or the fused `query_key_value` if
    /// `vb` contains it, or the parts of [`LatentProjections`]), and `output`. If configured, also `gate`, `sub_norm`,
    /// `query_norm`, `key_norm`, `position_key`, `position_query`, `position_gate`, `position_gate_factor.weight` `[n_heads, 1, 1]` and
    /// `sinks.weight` `[n_heads]`.
    ///
    /// # Errors
    /// If the configuration is invalid, a parameter is missing or has another shape, or a fused projection would need
    /// a bias for only a part of its outputs.
    pub fn new<'p>(config: &AttentionConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        Self::with_output(config, config.d_model, vb)
    }

    /// Creates the layer like [`Self::new`], with an output of this width.
    pub(in crate::layers) fn with_output<'p>(
        config: &AttentionConfig,
        d_out: usize,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let bias = config.bias;
        let (q, kv) = (config.query_width(), config.key_width());
        let linear = |name, d_in, d_out, bias| {
            Linear::new(&LinearConfig::new(d_in, d_out).with_bias(bias), vb.pp(name))
        };
        let (d_model, d_encoder) = (config.d_model, config.d_encoder);
        let projections = if config.latent.is_some() {
            QueryKeyValue::Latent(Box::new(LatentProjections::new(config, &vb)?))
        } else if config.shared_keys.is_some() {
            QueryKeyValue::Query(linear("query", d_model, q, bias.query)?)
        } else if config.values_are_keys {
            QueryKeyValue::QueryKey {
                query: linear("query", d_model, q, bias.query)?,
                key: linear("key", d_encoder, kv, bias.key)?,
            }
        } else if vb.contains_tensor("query_key_value.weight") {
            if [bias.key, bias.value] != [bias.query; 2] {
                bail!(
                    "attention: query, key and value are one fused projection, so all or none have a bias, but the configuration has {bias:?}"
                );
            }
            QueryKeyValue::Fused(linear("query_key_value", d_model, q + 2 * kv, bias.query)?)
        } else {
            QueryKeyValue::Separate {
                query: linear("query", d_model, q, bias.query)?,
                key: linear("key", d_encoder, kv, bias.key)?,
                value: linear("value", d_encoder, kv, bias.value)?,
            }
        };
        let gate = config
            .output_gate
            .map(|_| linear("gate", d_model, config.gate_width(), false));
        let output = linear("output", config.mixed_width(), d_out, bias.output)?;
        let sub_norm = config.sub_norm.map(|norm| {
            let d_model = config.mixed_width();
            Norm::new(&NormConfig { d_model, ..norm }, vb.pp("sub_norm"))
        });
        let norms = QueryKeyNorms::new(config, &vb)?;
        let sinks = config.sinks.then(|| {
            let hint = Init::Const(0.0);
            vb.pp("sinks")
                .get_with_hints(config.n_heads, "weight", hint)
        });
        Ok(Self {
            projections,
            gate: gate.transpose()?,
            sub_norm: sub_norm.transpose()?,
            output,
            norms,
            positions: PositionLinears::new(config, &vb)?,
            position_dropout: disentangled::position_dropout(config)?,
            bias_gate: BiasGate::new(config, &vb)?,
            sinks: sinks.transpose()?,
            dropout: Dropout::new(config.dropout, DropoutSource::default())?,
            config: config.clone(),
            packed: None,
        })
    }

    getters! {
        /// Sizes, scale and visibility.
        config(&self) -> &AttentionConfig => &self.config;
        /// The input projections.
        projections(&self) -> &QueryKeyValue => &self.projections;
        /// The gate on the heads' results, if there is one.
        gate(&self) -> Option<&Linear> => self.gate.as_ref();
        /// The norm before the output projection, `[n_heads · value_dim]`, if there is one.
        sub_norm(&self) -> Option<&Norm> => self.sub_norm.as_ref();
        /// The output projection, `[d_model, n_heads · value_dim]`.
        output(&self) -> &Linear => &self.output;
        /// The heads' sinks `[n_heads]`, if any.
        sinks(&self) -> Option<&Tensor> => self.sinks.as_ref();
    }

    /// Returns the projections through a latent, if the layer has them.
    pub(crate) fn latent(&self) -> Option<&LatentProjections> {
        match &self.projections {
            QueryKeyValue::Latent(latent) => Some(latent),
            _ => None,
        }
    }

    /// Prepares projected queries, keys or values: widens them to the dtype of products, clips them, and normalizes
    /// them if the layer has query and key norms.
    fn prepared(&self, x: Value, norms: Option<&[Norm]>) -> Result<Value> {
        let x = x.widened()?;
        let x = match self.config.clip {
            Some(clip) => x.clamp([-clip, clip])?,
            None => x,
        };
        match norms {
            Some(norms) => query_key_norm::normalized(norms, &x),
            None => Ok(x),
        }
    }

    /// Computes the output in evaluation mode, without a mask. Shapes are those in [`Self::forward_with`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }

    /// Computes self-attention with the context's mask, positions and mode.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]` to the same shape. `[seq, d_model]` is a single sequence, `[d_model]` a single position.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`, the rank is above 3, or a mask does not fit.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        let pass = Pass::new(context, x.dims())?;
        pass.through(Origin::new("attention", self.is_packed()), x, |x| {
            self.apply(x, None, &pass, None, None)
        })
    }

    /// Computes cross-attention to the context's encoder output. Every query sees every encoder position that the
    /// encoder mask keeps. Rotary embedding, distances, visibility and window in the configuration do not apply;
    /// linear biases do.
    ///
    /// # Shapes
    /// `x` is `[batch, seq, d_model]`, the encoder output `[batch, encoder_seq, d_encoder]`. The result has the shape
    /// of `x`.
    ///
    /// # Errors
    /// If the context has no encoder output, or shapes do not fit.
    pub fn forward_cross(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        let pass = Pass::new(context, x.dims())?;
        pass.through(Origin::new("attention", self.is_packed()), x, |x| {
            self.apply_cross(x, &pass, None, None)
        })
    }
}

impl MixerLayer for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn facts(&self) -> MixerFacts {
        self.config.facts()
    }

    fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    fn packed_mixer(&self, packing: &Packing) -> Result<Mixer> {
        Ok(Mixer::Attention(self.packed(packing)?))
    }

    fn new_state(&self, pages: &LargePages) -> LayerState {
        match self.is_packed() {
            true => LayerState::panels(pages),
            false => LayerState::rows(),
        }
    }

    fn check_state(&self, state: &LayerState, batch: usize) -> Result<()> {
        let packed = self.packed.as_ref();
        state.check(packed.map(|packed| packed.cached(batch)))
    }

    fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut LayerState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        self.apply(x, None, pass, state, residual)
    }
}

parts!(Attention: Self { projections, positions, bias_gate, gate, output, position_dropout, dropout, packed, .. }
    => [projections, positions, bias_gate, position_dropout, dropout, packed] [gate, output]);

impl ModuleT for Attention {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}
