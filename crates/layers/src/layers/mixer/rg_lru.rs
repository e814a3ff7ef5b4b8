//! Real-gated linear recurrent units.

use candle_core::{DType, Result, Tensor};
use candle_nn::Init;

use super::passes::passes;
use super::recurrent::{ConvolvedProjection, RecurrentPass, single, widened};
use crate::config::{Activation, LinearConfig, Precision, RgLruConfig, getters};
use crate::layers::packed::{Packing, packs};
use crate::layers::visit::parts;
use crate::layers::{Linear, ParameterSource};
use crate::layers::{pass::Pass, state::LayerState};
use crate::ops::{Value, activate, wide};

/// A real-gated linear recurrent unit after a convolution, RecurrentGemma's mixer. [`RgLruConfig`] has the formula.
///
/// ```
/// use candle_blocks::config::RgLruConfig;
/// use candle_blocks::layers::RgLru;
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
/// // 16 channels in 4 heads.
/// let lru = RgLru::new(&RgLruConfig::new(8, 16, 4), vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?; // [batch, seq, d_model]
/// assert_eq!(lru.forward(&x)?.dims(), [2, 5, 8]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RgLru {
    config: RgLruConfig,
    value: ConvolvedProjection,
    gate: Linear,
    input_gate: Vec<Linear>,
    recurrence_gate: Vec<Linear>,
    /// A packed layer has its softplus.
    rate: Tensor,
    /// The scan's rates, which are -1: `[1, d_inner]`.
    unit: Tensor,
    output: Linear,
    is_packed: bool,
}

/// The factor on steps.
const SHARPNESS: f64 = 8.0;

packs!(RgLru);

impl RgLru {
    /// Creates the layer with parameters from `vb`: the projections `value` and `gate` `[d_inner, d_model]`, `input_gate.{h}`
    /// and `recurrence_gate.{h}` `[d_inner / n_heads, d_inner / n_heads]` for each head and `output` `[d_model, d_inner]`, all
    /// with biases; the convolution `value_convolution` `[d_inner, 1, taps]` as in `torch.nn.Conv1d`, with a bias; and `rate`
    /// `[d_inner]`.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(config: &RgLruConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let &RgLruConfig {
            d_model,
            d_inner,
            taps,
            ..
        } = config;
        let linear = |vb, d_in, d_out| Linear::new(&LinearConfig::new(d_in, d_out), vb);
        let width = config.head_dim();
        let gate = |name: &str| {
            let of_head = |h| linear(vb.pp(name).pp(h), width, width);
            (0..config.n_heads).map(of_head).collect::<Result<_>>()
        };
        Ok(Self {
            config: *config,
            value: ConvolvedProjection::linear(&vb, "value", [d_model, d_inner, taps])?,
            gate: linear(vb.pp("gate"), d_model, d_inner)?,
            input_gate: gate("input_gate")?,
            recurrence_gate: gate("recurrence_gate")?,
            rate: vb
                .pp("rate")
                .get_with_hints(d_inner, "weight", Init::Const(1.0))?,
            unit: Tensor::ones((1, d_inner), wide(vb.dtype()), vb.device())?.neg()?,
            output: linear(vb.pp("output"), d_inner, d_model)?,
            is_packed: false,
        })
    }

    getters! {
        /// Widths, heads, taps and activation.
        config(&self) -> &RgLruConfig => &self.config;
    }

    /// Returns the dimensions of each part in the state after the batch: the convolution's last rows, and the channels'
    /// states.
    pub(super) fn state_dims(&self) -> [Vec<usize>; 2] {
        let RgLruConfig { d_inner, taps, .. } = self.config;
        [vec![taps - 1, d_inner], vec![1, d_inner]]
    }

    /// The recurrence's gates stay in f32 in every precision: few weights, on which all later positions depend.
    pub(in crate::layers) fn packed(&self, packing: &Packing) -> Result<Self> {
        let gate = |of: &[Linear], packing: Packing| {
            let of_head = |(h, of): (usize, &Linear)| of.packed(&packing.at(h));
            of.iter().enumerate().map(of_head).collect::<Result<_>>()
        };
        Ok(Self {
            config: self.config,
            value: self.value.packed(&packing.at("value"))?,
            gate: self.gate.packed(&packing.at("gate"))?,
            input_gate: gate(&self.input_gate, packing.at("input_gate"))?,
            recurrence_gate: gate(&self.recurrence_gate, packing.exact().at("recurrence_gate"))?,
            rate: single(&self.rates(DType::F32)?)?,
            unit: single(&self.unit)?,
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
        let (train, dtype) = (pass.context.train(), x.dtype());
        let mut states = RecurrentPass::new(self.config.taps, x, pass, state)?;
        let value = states.convolved(&self.value, 1.0)?;
        let rows = value.to_dtype(dtype)?;
        let rate = self.rates(value.dtype())?;
        let steps = gates(&self.recurrence_gate, &rows, train)?.multiply_rows(&rate)?;
        let steps = states.beginning(steps.scale(SHARPNESS)?)?;
        let written = gates(&self.input_gate, &rows, train)?;
        let written = written.gate(&value, Activation::Identity, None)?;
        let written = written.gate(&steps.decay_complement()?, Activation::Identity, None)?;
        let mut one = value.dims().to_vec();
        one.pop();
        one.push(1);
        let one = value.beside(&Tensor::ones(one, value.dtype(), &value.device())?)?;
        let read = states.scan(&self.unit, [&steps, &one, &one, &written])?;

        let (read, x) = (pass.requested_rows(read)?, pass.requested_rows(x.clone())?);
        let gate = self.gate.apply(&x, None, train)?.widened()?;
        let mixed = gate.gate(&read, self.config.activation, None)?;
        self.output.apply(&mixed.to_dtype(dtype)?, residual, train)
    }

    fn rates(&self, dtype: DType) -> Result<Tensor> {
        let rate = widened(&self.rate, dtype)?;
        match self.is_packed {
            true => Ok(rate),
            false => activate(&rate, Activation::Softplus),
        }
    }
}

/// Returns the sigmoids of a projection for each head, in f32 or f64.
fn gates(of: &[Linear], rows: &Value, train: bool) -> Result<Value> {
    let width = of[0].shape().0;
    let mut all: Option<Value> = None;
    for (h, of) in of.iter().enumerate() {
        let own = of.apply(&rows.columns(h * width..(h + 1) * width), None, train)?;
        let n = own.dims().iter().product::<usize>() / width;
        let own = own.widened()?.reshape(vec![n, 1, width])?;
        all = Some(match all {
            Some(all) => all.joined(&own)?,
            None => own,
        });
    }
    let all = all.map_or_else(|| rows.widened(), |all| all.reshape(rows.dims().to_vec()))?;
    all.activate(Activation::Sigmoid)
}

parts!(RgLru: Self { value, gate, input_gate, recurrence_gate, output, .. }
    => [] [value, gate, input_gate, recurrence_gate, output]);

passes!(RgLru, "RG-LRU", is_packed);
