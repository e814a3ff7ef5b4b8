//! Gated delta rules.

use candle_blocks_kernels::recurrence::{Rule, StateHeads};
use candle_core::{Device, Result, Tensor};

use super::layer::recurrent;
use super::recurrent::{ChannelDecay, ConvolvedProjection, Decay, RecurrentPass, in_heads};
use crate::config::{Activation, DeltaForm, GatedDeltaNetConfig, NormConfig, getters};
use crate::layers::linear::ThroughRank;
use crate::layers::packed::Packing;
use crate::layers::{Linear, Norm, ParameterSource};
use crate::layers::{pass::Pass, state::LayerState};
use crate::ops::{Value, wide};

/// A gated delta rule (Gated DeltaNet). [`GatedDeltaNetConfig`] has the formula.
///
/// ```
/// use candle_blocks::config::GatedDeltaNetConfig;
/// use candle_blocks::layers::GatedDeltaNet;
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
/// // Two key heads and four value heads, with keys of 4 and values of 6 dimensions.
/// let delta = GatedDeltaNet::new(&GatedDeltaNetConfig::new(8, [2, 4], [4, 6]), vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?; // [batch, seq, d_model]
/// assert_eq!(delta.forward(&x)?.dims(), [2, 5, 8]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GatedDeltaNet {
    config: GatedDeltaNetConfig,
    query: ConvolvedProjection,
    key: ConvolvedProjection,
    value: ConvolvedProjection,
    gate: ThroughRank,
    write: Linear,
    decay: Decay,
    /// Norms that give a query the length `1 / √key_dim`, and a key the length 1.
    units: [Norm; 2],
    norm: Norm,
    output: Linear,
    is_packed: bool,
}

impl GatedDeltaNet {
    /// Creates the layer with parameters from `vb`: the projections `query` and `key` `[n_key_heads · key_dim, d_model]`,
    /// `value` and `gate` `[n_value_heads · value_dim, d_model]`, `write` and `decay` `[n_value_heads, d_model]`, and
    /// `output` `[d_model, n_value_heads · value_dim]`, all without biases; the convolutions `query_convolution`,
    /// `key_convolution` and `value_convolution` `[width, 1, taps]` as in `torch.nn.Conv1d`; `decay.bias` and `rate`
    /// `[n_value_heads]`; and `norm` `[value_dim]`.
    ///
    /// By [`DeltaForm::Channel`], `decay` and its bias have `n_value_heads · key_dim` rows. With a rank there are also
    /// `gate.low` and `decay.low` `[rank, d_model]`; `gate` and `decay` then have `rank` columns, and `rate` is
    /// `[n_value_heads, 1]`.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &GatedDeltaNetConfig,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let (keys, values, heads) = (
            config.keys_width(),
            config.values_width(),
            config.n_value_heads,
        );
        let linear = |name: &str, d_in, d_out| Linear::unbiased([d_in, d_out], vb.pp(name));
        let d_model = config.d_model;
        let (rank, channels) = match config.form {
            DeltaForm::Head => (None, None),
            DeltaForm::Channel { rank, bound } => (
                rank,
                Some(ChannelDecay {
                    n_channels: config.key_dim,
                    rank,
                    bound,
                }),
            ),
        };
        let convolved =
            |name, width| ConvolvedProjection::new(&vb, name, [d_model, width, config.taps], false);
        let kind = (wide(vb.dtype()), vb.device());
        // An RMS norm divides by the length and multiplies by the root of the width.
        let root = (config.key_dim as f64).sqrt();
        let unit = |weight: f64| {
            let norm = NormConfig::rms_norm(config.key_dim, 1e-6 / config.key_dim as f64);
            let weight = Tensor::full(weight, config.key_dim, &Device::Cpu)?;
            let weight = weight.to_dtype(kind.0)?.to_device(kind.1)?;
            Norm::from_parts(weight, None, norm)
        };
        Ok(Self {
            config: *config,
            query: convolved("query", keys)?,
            key: convolved("key", keys)?,
            value: convolved("value", values)?,
            gate: ThroughRank::new(&vb.pp("gate"), [d_model, values], rank)?,
            write: linear("write", d_model, heads)?,
            decay: Decay::new(&vb, [d_model, heads], channels)?,
            units: [unit(1.0 / (root * root))?, unit(1.0 / root)?],
            norm: Norm::new(&config.norm, vb.pp("norm"))?,
            output: linear("output", values, d_model)?,
            is_packed: false,
        })
    }

    getters! {
        /// Heads, widths, taps and norm.
        config(&self) -> &GatedDeltaNetConfig => &self.config;
    }

    /// Returns the dimensions of each part in the state after the batch: the three convolutions' last rows, and each value
    /// head's state.
    fn state_dims(&self) -> [Vec<usize>; 4] {
        let of = &self.config;
        let [keys, values] = [of.keys_width(), of.values_width()];
        let rows = |width| vec![of.taps - 1, width];
        let state = vec![of.n_value_heads, of.key_dim, of.value_dim];
        [rows(keys), rows(keys), rows(values), state]
    }

    fn packed(&self, packing: &Packing) -> Result<Self> {
        let [of_query, of_key] = self.units.each_ref().map(Norm::packed);
        Ok(Self {
            units: [of_query?, of_key?],
            norm: self.norm.packed()?,
            ..self.with_packed_parts(packing)?
        })
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
        let mut states = RecurrentPass::new(self.config.taps, x, pass, state)?;
        let query = self.of_length(0, &states.convolved(&self.query, 1.0)?)?;
        let key = self.of_length(1, &states.convolved(&self.key, 1.0)?)?;
        let value = states.convolved(&self.value, 1.0)?;
        let (rule, gated_by) = match self.config.form {
            DeltaForm::Head => (Rule::Delta, Activation::Silu),
            DeltaForm::Channel { .. } => (Rule::ChannelDelta, Activation::Sigmoid),
        };
        let steps = self.decay.steps(x, 1.0, train)?;
        let decay = self.decay.logarithms(&steps)?;
        let write = self.write.apply(x, None, train)?.widened()?;
        let write = write.activate(Activation::Sigmoid)?;
        let write = write.scale(self.config.strength)?;
        let inputs = [&query, &key, &value];
        let read = states.recur(rule, self.heads(), inputs, [&decay, &write])?;

        let read = pass.requested_rows(read.to_dtype(x.dtype())?)?;
        let dims = read.dims().to_vec();
        let read = self
            .norm
            .apply_in_place(in_heads(&read, self.config.value_dim)?)?;
        let x = pass.requested_rows(x.clone())?;
        let gate = self.gate.apply(&x, train)?;
        let mixed = gate.gate(&read.reshape(dims)?, gated_by, None)?;
        self.output.apply(&mixed, residual, train)
    }

    /// Divides queries (0) or keys (1) by their lengths.
    fn of_length(&self, part: usize, rows: &Value) -> Result<Value> {
        let unit = in_heads(rows, self.config.key_dim)?;
        self.units[part]
            .apply_in_place(unit)?
            .reshape(rows.dims().to_vec())
    }

    fn heads(&self) -> StateHeads {
        StateHeads {
            n_keys: self.config.n_key_heads,
            n_values: self.config.n_value_heads,
            key_dim: self.config.key_dim,
            value_dim: self.config.value_dim,
        }
    }
}

recurrent!(GatedDeltaNet: GatedDeltaNet, "gated delta rule", DELTA,
    [query, key, value, gate, write exact, decay, output]);
