//! Mamba-2's state space model.

use candle_blocks_kernels::recurrence::{Rule, StateHeads};
use candle_core::{DType, Result, Tensor};
use candle_nn::Init;

use super::layer::recurrent;
use super::recurrent::{ConvolvedProjection, Decay, RecurrentPass};
use super::recurrent::{in_heads, single, widened};
use crate::config::{Activation, Mamba2Config, Mamba2Norm, NormConfig, getters};
use crate::layers::packed::Packing;
use crate::layers::{Linear, Norm, ParameterSource};
use crate::layers::{pass::Pass, state::LayerState};
use crate::ops::{Value, record, wide};

/// Mamba-2's state space model. [`Mamba2Config`] has the formula.
///
/// ```
/// use candle_blocks::config::Mamba2Config;
/// use candle_blocks::layers::Mamba2;
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
/// // Four heads of 4 dimensions, with states of 6.
/// let mamba = Mamba2::new(&Mamba2Config::new(8, [4, 4], 6), vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?; // [batch, seq, d_model]
/// assert_eq!(mamba.forward(&x)?.dims(), [2, 5, 8]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mamba2 {
    config: Mamba2Config,
    value: ConvolvedProjection,
    key: ConvolvedProjection,
    query: ConvolvedProjection,
    gate: Linear,
    decay: Decay,
    /// Each head's factor, or in a packed layer each column's.
    skip: Tensor,
    /// The norm, at the place that the configuration says.
    norm: Option<GroupNorm>,
    output: Linear,
    is_packed: bool,
}

/// An RMS norm over each group of a row, and a weight over the whole row.
#[derive(Clone, Debug)]
struct GroupNorm {
    /// A group's norm, whose weight is 1.
    unit: Norm,
    weight: Tensor,
}

impl Mamba2 {
    /// Creates the layer with parameters from `vb`: the projections `value` and `gate` `[n_heads · head_dim, d_model]`,
    /// `key` and `query` `[n_groups · state_dim, d_model]`, `decay` `[n_heads, d_model]` and `output`
    /// `[d_model, n_heads · head_dim]`; the convolutions `value_convolution`, `key_convolution` and `query_convolution`
    /// `[width, 1, taps]` as in `torch.nn.Conv1d`; `decay.bias`, `rate` and `skip` `[n_heads]`; and `norm`
    /// `[n_heads · head_dim]` unless it is absent. If configured, convolutions have biases.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(config: &Mamba2Config, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let &Mamba2Config {
            d_model,
            n_heads,
            taps,
            ..
        } = config;
        let (keys, values) = (config.keys_width(), config.values_width());
        let linear = |name, d_in, d_out| Linear::unbiased([d_in, d_out], vb.pp(name));
        let bias = config.convolution_bias;
        let convolved =
            |name, width| ConvolvedProjection::new(&vb, name, [d_model, width, taps], bias);
        let one = Init::Const(1.0);
        let width = values / config.n_groups;
        let ones = Tensor::ones(width, wide(vb.dtype()), vb.device())?;
        let unit = NormConfig::rms_norm(width, config.norm_eps);
        let norm = match config.norm {
            Mamba2Norm::Absent => None,
            Mamba2Norm::AfterGate | Mamba2Norm::BeforeGate => Some(GroupNorm {
                unit: Norm::from_parts(ones, None, unit)?,
                weight: vb.pp("norm").get_with_hints(values, "weight", one)?,
            }),
        };
        Ok(Self {
            config: *config,
            value: convolved("value", values)?,
            key: convolved("key", keys)?,
            query: convolved("query", keys)?,
            gate: linear("gate", d_model, values)?,
            decay: Decay::new(&vb, [d_model, n_heads], None)?,
            skip: vb.pp("skip").get_with_hints(n_heads, "weight", one)?,
            norm,
            output: linear("output", values, d_model)?,
            is_packed: false,
        })
    }

    getters! {
        /// Heads, widths, taps, steps and norm.
        config(&self) -> &Mamba2Config => &self.config;
    }

    /// Returns the dimensions of each part in the state after the batch: the three convolutions' last rows, and each head's
    /// state.
    fn state_dims(&self) -> [Vec<usize>; 4] {
        let of = &self.config;
        let [keys, values] = [of.keys_width(), of.values_width()];
        let rows = |width| vec![of.taps - 1, width];
        let state = vec![of.n_heads, of.state_dim, of.head_dim];
        [rows(values), rows(keys), rows(keys), state]
    }

    pub(super) fn packed(&self, packing: &Packing) -> Result<Self> {
        let norm = self.norm.as_ref().map(GroupNorm::packed).transpose()?;
        Ok(Self {
            skip: single(&self.skip_of_columns(DType::F32)?)?,
            norm,
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
        let factors = self.config.multipliers;
        let value = states.convolved(&self.value, factors.value)?;
        let key = states.convolved(&self.key, factors.key)?;
        let query = states.convolved(&self.query, factors.query)?;
        let mut steps = self.decay.steps(x, factors.step, train)?;
        let limits = self.config.steps();
        if limits != [0.0, f64::INFINITY] {
            steps = steps.clamp(limits)?;
        }
        let decay = self.decay.logarithms(&steps)?;
        let inputs = [&query, &key, &value];
        let read = states.recur(Rule::Sum, self.heads(), inputs, [&decay, &steps])?;

        let read = read.add(&value.multiply_rows(&self.skip_of_columns(value.dtype())?)?)?;
        let read = pass.requested_rows(read)?;
        let (dtype, x) = (x.dtype(), pass.requested_rows(x.clone())?);
        let gate = self.gate.apply(&x, None, train)?;
        let gate = gate.multiplied(factors.gate)?.widened()?;
        let gated = |read: &Value| gate.gate(read, Activation::Silu, None);
        let mixed = match (&self.norm, self.config.norm) {
            (Some(norm), Mamba2Norm::BeforeGate) => {
                let wide = read.dtype();
                gated(&norm.apply(read, wide)?)?.to_dtype(dtype)?
            }
            (Some(norm), _) => norm.apply(gated(&read)?, dtype)?,
            (None, _) => gated(&read)?.to_dtype(dtype)?,
        };
        self.output.apply(&mixed, residual, train)
    }

    fn heads(&self) -> StateHeads {
        StateHeads {
            n_keys: self.config.n_groups,
            n_values: self.config.n_heads,
            key_dim: self.config.state_dim,
            value_dim: self.config.head_dim,
        }
    }

    /// Returns each head's factor for every column of its value.
    fn skip_of_columns(&self, dtype: DType) -> Result<Tensor> {
        let Mamba2Config {
            n_heads, head_dim, ..
        } = self.config;
        let skip = widened(&self.skip, dtype)?;
        if self.is_packed {
            return Ok(skip);
        }
        record("copy", &skip)?;
        let skip = skip
            .reshape((n_heads, 1))?
            .broadcast_as((n_heads, head_dim))?;
        skip.contiguous()?.flatten_all()
    }
}

impl GroupNorm {
    fn packed(&self) -> Result<Self> {
        Ok(Self {
            unit: self.unit.packed()?,
            weight: single(&self.weight)?,
        })
    }

    /// Returns the normalized rows, rounded to a type before they are multiplied by the weight.
    fn apply(&self, rows: Value, dtype: DType) -> Result<Value> {
        let dims = rows.dims().to_vec();
        let groups = in_heads(&rows, self.unit.config().d_model)?;
        let rows = self.unit.apply_in_place(groups)?.reshape(dims)?;
        rows.to_dtype(dtype)?
            .multiply_rows(&widened(&self.weight, dtype)?)
    }
}

recurrent!(Mamba2: Mamba2, "Mamba-2", MAMBA,
    [value, key, query, gate, decay, output]);
