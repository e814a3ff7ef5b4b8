//! Mamba's state space model.

use candle_core::{DType, Result, Tensor};
use candle_nn::Init;

use super::layer::recurrent;
use super::recurrent::{ConvolvedProjection, RecurrentPass, single, widened};
use crate::config::{Activation, MambaConfig, NormConfig, getters};
use crate::layers::own::streams::{apart, side_by_side};
use crate::layers::packed::Packing;
use crate::layers::visit::parts;
use crate::layers::{Linear, Norm, ParameterSource};
use crate::layers::{pass::Pass, state::LayerState};
use crate::ops::{Value, record};

/// Mamba's state space model. [`MambaConfig`] has the formula.
///
/// ```
/// use candle_blocks::config::MambaConfig;
/// use candle_blocks::layers::Mamba;
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
/// // 16 channels with states of 4 elements.
/// let mamba = Mamba::new(&MambaConfig::new(8, 16, 4, 2), vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?; // [batch, seq, d_model]
/// assert_eq!(mamba.forward(&x)?.dims(), [2, 5, 8]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mamba {
    config: MambaConfig,
    value: ConvolvedProjection,
    gate: Linear,
    /// The heads with their roles. A single one has the layer's own.
    heads: Vec<(String, Head)>,
    output: Linear,
    is_packed: bool,
}

/// The scan over a head's channels.
#[derive(Clone, Debug)]
struct Head {
    decay: NormedProjection,
    key: NormedProjection,
    query: NormedProjection,
    step: Linear,
    step_bias: Tensor,
    /// `[channels, state_dim]`; a packed layer has `-exp(rate)`, `[state_dim, channels]`.
    rate: Tensor,
    skip: Tensor,
    is_packed: bool,
}

/// A projection of the convolved values, and a norm over its rows.
#[derive(Clone, Debug)]
struct NormedProjection {
    projection: Linear,
    norm: Option<Norm>,
}

impl Mamba {
    /// Creates the layer with parameters from `vb`: the projections `value` and `gate` `[d_inner, d_model]`, `decay`
    /// `[step_rank, d_inner]`, `key` and `query` `[state_dim, d_inner]`, `step` `[d_inner, step_rank]` with `step.bias`
    /// `[d_inner]`, and `output` `[d_model, d_inner]`; the convolution `value_convolution` `[d_inner, 1, taps]` as in
    /// `torch.nn.Conv1d`; `rate` `[d_inner, state_dim]` and `skip` `[d_inner]`; and, if configured, a bias for the
    /// convolution and `decay_norm`, `key_norm` and `query_norm`. With several heads, all but `value`, `gate`, `output` and
    /// the convolution are below `heads.{h}`, with `d_inner / n_heads` in place of `d_inner`.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(config: &MambaConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let &MambaConfig {
            d_model,
            d_inner,
            taps,
            n_heads,
            ..
        } = config;
        let linear = |name, d_in, d_out| Linear::unbiased([d_in, d_out], vb.pp(name));
        let head = |h: usize| {
            let role = match n_heads {
                1 => String::new(),
                _ => format!("heads.{h}"),
            };
            let head = Head::new(config, &vb.pp(&role))?;
            Ok((role, head))
        };
        let bias = config.convolution_bias;
        Ok(Self {
            config: *config,
            value: ConvolvedProjection::new(&vb, "value", [d_model, d_inner, taps], bias)?,
            gate: linear("gate", d_model, d_inner)?,
            heads: (0..n_heads).map(head).collect::<Result<_>>()?,
            output: linear("output", d_inner, d_model)?,
            is_packed: false,
        })
    }

    getters! {
        /// Widths, taps and norms.
        config(&self) -> &MambaConfig => &self.config;
    }

    /// Returns the dimensions of each part in the state after the batch: the convolution's last rows, and the states of each
    /// head's channels.
    fn state_dims(&self) -> Vec<Vec<usize>> {
        let of = &self.config;
        let mut dims = vec![vec![of.state_dim, of.d_inner / of.n_heads]; of.n_heads];
        dims.insert(0, vec![of.taps - 1, of.d_inner]);
        dims
    }

    fn packed(&self, packing: &Packing) -> Result<Self> {
        let mut packed = self.with_packed_parts(packing)?;
        for (role, head) in &mut packed.heads {
            *head = head.packed(&packing.at(role))?;
        }
        Ok(packed)
    }

    /// Computes the output for positions after the state's, and adds it to `residual`.
    fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut LayerState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        let train = pass.context.train();
        let dtype = x.dtype();
        let mut states = RecurrentPass::new(self.config.taps, x, pass, state)?;
        let value = states.convolved(&self.value, 1.0)?;
        let read = match &self.heads[..] {
            [(_, head)] => head.scan(&value, dtype, &mut states)?,
            heads => {
                let values = apart(&value, heads.len())?;
                let read = heads.iter().zip(&values);
                let read = read.map(|((_, head), value)| head.scan(value, dtype, &mut states));
                side_by_side(read.collect::<Result<Vec<_>>>()?.iter())?
            }
        };
        states.finish();

        let read = pass.requested_rows(read)?;
        let gate = self
            .gate
            .apply(&pass.requested_rows(x.clone())?, None, train)?;
        let mixed = gate.widened()?.gate(&read, Activation::Silu, None)?;
        self.output.apply(&mixed.to_dtype(dtype)?, residual, train)
    }
}

impl Head {
    fn new(config: &MambaConfig, vb: &ParameterSource) -> Result<Self> {
        let &MambaConfig {
            state_dim,
            step_rank,
            ..
        } = config;
        let channels = config.d_inner / config.n_heads;
        let linear = |name, d_in, d_out| Linear::unbiased([d_in, d_out], vb.pp(name));
        let normed = |name, width| -> Result<NormedProjection> {
            let of = |norm| {
                let norm = NormConfig {
                    d_model: width,
                    ..norm
                };
                Norm::new(&norm, vb.pp(format!("{name}_norm")))
            };
            Ok(NormedProjection {
                projection: linear(name, channels, width)?,
                norm: config.norm.map(of).transpose()?,
            })
        };
        let one = Init::Const(1.0);
        Ok(Self {
            decay: normed("decay", step_rank)?,
            key: normed("key", state_dim)?,
            query: normed("query", state_dim)?,
            step: linear("step", step_rank, channels)?,
            step_bias: vb.pp("step").get_with_hints(channels, "bias", one)?,
            rate: vb
                .pp("rate")
                .get_with_hints((channels, state_dim), "weight", one)?,
            skip: vb.pp("skip").get_with_hints(channels, "weight", one)?,
            is_packed: false,
        })
    }

    fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(Self {
            decay: self.decay.packed(&packing.at("decay"))?,
            key: self.key.packed(&packing.at("key"))?,
            query: self.query.packed(&packing.at("query"))?,
            step: self.step.packed(&packing.at("step"))?,
            step_bias: single(&self.step_bias)?,
            rate: single(&self.rates(DType::F32)?)?,
            skip: single(&self.skip)?,
            is_packed: true,
        })
    }

    /// Returns the channels' results for convolved values. Projections read the values in `dtype`.
    fn scan(&self, value: &Value, dtype: DType, states: &mut RecurrentPass) -> Result<Value> {
        let (train, wide) = (states.train(), value.dtype());
        let rows = value.to_dtype(dtype)?;
        let key = self.key.apply(&rows, train)?.widened()?;
        let query = self.query.apply(&rows, train)?.widened()?;
        let steps = self.decay.apply(&rows, train)?;
        let steps = self.step.apply(&steps, None, train)?.widened()?;
        let steps = steps.add_to_rows(&widened(&self.step_bias, wide)?)?;
        let steps = steps.activate(Activation::Softplus)?;
        let written = steps.gate(value, Activation::Identity, None)?;
        let rate = self.rates(wide)?;
        let read = states.scan(&rate, [&steps, &query, &key, &written])?;
        read.add(&value.multiply_rows(&widened(&self.skip, wide)?)?)
    }

    /// Returns `-exp(rate)`, `[state_dim, channels]`.
    fn rates(&self, dtype: DType) -> Result<Tensor> {
        let rate = widened(&self.rate, dtype)?;
        if self.is_packed {
            return Ok(rate);
        }
        record("exp", &rate)?;
        record("neg", &rate)?;
        record("copy", &rate)?;
        rate.exp()?.neg()?.t()?.contiguous()
    }
}

impl NormedProjection {
    fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(Self {
            norm: self.norm.as_ref().map(Norm::packed).transpose()?,
            ..packing.linears_of(self)?
        })
    }

    fn apply(&self, x: &Value, train: bool) -> Result<Value> {
        let rows = self.projection.apply(x, None, train)?;
        match &self.norm {
            Some(norm) => norm.apply_in_place(rows),
            None => Ok(rows),
        }
    }
}

parts!(NormedProjection: Self { projection, .. } => [projection] []);

parts!(Head: Self { decay, key, query, step, .. } => [] [decay, key, query, step]);

recurrent!(Mamba: Mamba, "Mamba", SELECTIVE, [value, gate, output], own [heads]);
