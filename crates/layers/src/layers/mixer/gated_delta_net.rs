//! Gated delta rules.

use candle_blocks_kernels::{products::WeightFormat, recurrence::StateHeads};
use candle_core::{DType, ModuleT, Result, Tensor};
use candle_nn::Init;

use crate::config::{
    Activation, GatedDeltaNetConfig, LinearConfig, NormConfig, Precision, getters,
};
use crate::layers::packed::{Packing, check_evaluation, packs};
use crate::layers::visit::parts;
use crate::layers::{ForwardContext, Linear, Norm, ParameterSource};
use crate::layers::{linear::packed::plain, pass::Origin, pass::Pass, state::LayerState};
use crate::ops::{DeltaRule, Value, record, wide};

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
    query: Linear,
    key: Linear,
    value: Linear,
    gate: Linear,
    write: Linear,
    decay: Linear,
    /// The convolutions of queries, keys and values, `[width, 1, taps]`.
    convolutions: [Tensor; 3],
    decay_bias: Tensor,
    rate: Tensor,
    /// Norms that give a query the length `1 / √key_dim`, and a key the length 1.
    units: [Norm; 2],
    norm: Norm,
    output: Linear,
    is_packed: bool,
}

packs!(GatedDeltaNet);

impl GatedDeltaNet {
    /// Creates the layer with parameters from `vb`: the projections `query` and `key` `[n_key_heads · key_dim, d_model]`,
    /// `value` and `gate` `[n_value_heads · value_dim, d_model]`, `write` and `decay` `[n_value_heads, d_model]`, and
    /// `output` `[d_model, n_value_heads · value_dim]`, all without biases; the convolutions `query_convolution`,
    /// `key_convolution` and `value_convolution` `[width, 1, taps]` as in `torch.nn.Conv1d`; `decay.bias` and `rate`
    /// `[n_value_heads]`; and `norm` `[value_dim]`.
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
        let linear = |name, d_in, d_out| {
            Linear::new(
                &LinearConfig::new(d_in, d_out).with_bias(false),
                vb.pp(name),
            )
        };
        let projection = |name, d_out| linear(name, config.d_model, d_out);
        let convolution = |name: &str, width| vb.pp(name).get((width, 1, config.taps), "weight");
        let one = Init::Const(1.0);
        let kind = (wide(vb.dtype()), vb.device());
        // An RMS norm divides by the length and multiplies by the root of the width.
        let root = (config.key_dim as f64).sqrt();
        let unit = |weight: f64| {
            let norm = NormConfig::rms_norm(config.key_dim, 1e-6 / config.key_dim as f64);
            let weight = Tensor::full(weight as f32, config.key_dim, kind.1)?.to_dtype(kind.0)?;
            Norm::from_parts(weight, None, norm)
        };
        Ok(Self {
            config: *config,
            query: projection("query", keys)?,
            key: projection("key", keys)?,
            value: projection("value", values)?,
            gate: projection("gate", values)?,
            write: projection("write", heads)?,
            decay: projection("decay", heads)?,
            convolutions: [
                convolution("query_convolution", keys)?,
                convolution("key_convolution", keys)?,
                convolution("value_convolution", values)?,
            ],
            decay_bias: vb.pp("decay").get_with_hints(heads, "bias", one)?,
            rate: vb.pp("rate").get_with_hints(heads, "weight", one)?,
            units: [unit(1.0 / (root * root))?, unit(1.0 / root)?],
            norm: Norm::new(&config.norm, vb.pp("norm"))?,
            output: linear("output", values, config.d_model)?,
            is_packed: false,
        })
    }

    getters! {
        /// Heads, widths, taps, norm and gate.
        config(&self) -> &GatedDeltaNetConfig => &self.config;
    }

    /// Returns true if the layer's weights are packed.
    pub(super) fn is_packed(&self) -> bool {
        self.is_packed
    }

    /// Returns the dimensions of each part of the state after the batch: the last rows of the three convolutions, and the
    /// state of each value head.
    pub(super) fn state_dims(&self) -> [Vec<usize>; 4] {
        let GatedDeltaNetConfig {
            taps,
            n_value_heads,
            key_dim,
            value_dim,
            ..
        } = self.config;
        let [keys, values] = [self.config.keys_width(), self.config.values_width()];
        let rows = |width| vec![taps - 1, width];
        let state = vec![n_value_heads, key_dim, value_dim];
        [rows(keys), rows(keys), rows(values), state]
    }

    /// Computes the output in evaluation mode, without a mask. Shapes are those in [`Self::forward_with`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }

    /// Computes the delta rule with the context's padding mask and mode.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]` to the same shape. `[seq, d_model]` is a single sequence, `[d_model]` a single position.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`, the rank is above 3, a padding mask does not fit, or there is an additive
    /// mask.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        let pass = Pass::new(context, x.dims())?;
        pass.through(Origin::new("gated delta rule", self.is_packed()), x, |x| {
            self.apply(x, &pass, None, None)
        })
    }

    /// Factors of a state stay in f32 in every precision.
    pub(in crate::layers) fn packed(&self, packing: &Packing) -> Result<Self> {
        let exact = Packing {
            format: Some(WeightFormat::F32),
            ..packing.clone()
        };
        let single = |of: &Tensor| plain(of)?.to_dtype(DType::F32);
        let norm = |of: &Norm| {
            let bias = of.bias().map(single).transpose()?;
            Norm::from_parts(single(of.weight())?, bias, *of.config())
        };
        let [query, key, value] = self.convolutions.each_ref().map(single);
        let [of_query, of_key] = self.units.each_ref().map(norm);
        Ok(Self {
            config: self.config,
            query: self.query.packed(&packing.at("query"))?,
            key: self.key.packed(&packing.at("key"))?,
            value: self.value.packed(&packing.at("value"))?,
            gate: self.gate.packed(&packing.at("gate"))?,
            write: self.write.packed(&exact.at("write"))?,
            decay: self.decay.packed(&exact.at("decay"))?,
            convolutions: [query?, key?, value?],
            decay_bias: single(&self.decay_bias)?,
            rate: single(&self.rate)?,
            units: [of_query?, of_key?],
            norm: norm(&self.norm)?,
            output: self.output.packed(&packing.at("output"))?,
            is_packed: true,
        })
    }

    /// Computes the output for positions after the state's, and adds it to `residual`.
    pub(super) fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut LayerState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        let train = pass.context.train();
        if self.is_packed {
            check_evaluation(train)?;
        }
        let state = state.map(LayerState::as_recurrent).transpose()?;
        let earlier = |part: usize| state.as_ref().and_then(|state| state.tensor(part));
        let table = pass.tap_table(self.config.taps, earlier(0).is_some())?;
        let mut after = Vec::new();
        let mut convolved = |part: usize, projection: &Linear| {
            let rows = projection.apply(x, None, train)?;
            after.push(rows.rows_after(earlier(part), &table)?);
            let mixed = rows.convolve(&self.convolutions[part], None, earlier(part), &table)?;
            mixed.activate(Activation::Silu)?.widened()
        };
        let query = self.of_length(0, &convolved(0, &self.query)?)?;
        let key = self.of_length(1, &convolved(1, &self.key)?)?;
        let value = convolved(2, &self.value)?;
        let (decay, write) = self.factors(x, train)?;
        let delta = DeltaRule {
            heads: self.heads(),
            query: &query,
            key: &key,
            value: &value,
            decay: &decay,
            write: &write,
            state: earlier(3),
            rows: &pass.sequence_rows()?,
        };
        let (read, states) = delta.compute()?;
        if let Some(state) = state {
            after.push(states);
            state.advance(pass.seen + pass.seq, after);
        }

        let read = pass.requested_rows(read.to_dtype(x.dtype())?)?;
        let dims = read.dims().to_vec();
        let read = self
            .norm
            .apply_in_place(in_heads(&read, self.config.value_dim)?)?;
        let x = pass.requested_rows(x.clone())?;
        let gate = self.gate.apply(&x, None, train)?;
        let mixed = gate.gate(&read.reshape(dims)?, self.config.activation, None)?;
        self.output.apply(&mixed, residual, train)
    }

    /// Returns the logarithms of the states' decay, and the strengths with which they are written.
    fn factors(&self, x: &Value, train: bool) -> Result<(Value, Value)> {
        let dtype = x.sum_type();
        for of in [&self.decay_bias, &self.rate] {
            record("to_dtype", of)?;
        }
        let rate = self.rate.to_dtype(dtype)?;
        record("exp", &rate)?;
        record("neg", &rate)?;
        let step = self.decay.apply(x, None, train)?.widened()?;
        let step = step.add_to_rows(&self.decay_bias.to_dtype(dtype)?)?;
        let step = step.activate(Activation::Softplus)?;
        let write = self.write.apply(x, None, train)?.widened()?;
        let write = write.activate(Activation::Sigmoid)?;
        Ok((
            step.multiply_rows(&rate.exp()?.neg()?)?,
            write.scale(self.config.strength)?,
        ))
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

/// Returns the rows with a dimension for heads of this width.
fn in_heads(rows: &Value, width: usize) -> Result<Value> {
    let mut dims = rows.dims().to_vec();
    let of_all = dims.pop().unwrap_or(0);
    dims.extend([of_all / width, width]);
    rows.reshape(dims)
}

parts!(GatedDeltaNet: Self { query, key, value, gate, write, decay, output, .. }
    => [] [query, key, value, gate, write, decay, output]);

impl ModuleT for GatedDeltaNet {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}
