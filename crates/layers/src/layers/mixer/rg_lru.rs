//! Real-gated linear recurrent units.

use candle_core::{DType, Result, Tensor};
use candle_nn::Init;

use super::layer::recurrent;
use super::recurrent::{ConvolvedProjection, RecurrentPass, single, widened};
use crate::config::{Activation, LinearConfig, RgLruConfig, getters};
use crate::layers::own::streams::{apart, side_by_side};
use crate::layers::packed::Packing;
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
    input_gate: HeadGate,
    recurrence_gate: HeadGate,
    /// A packed layer has its softplus.
    rate: Tensor,
    /// The scan's rates, which are -1: `[1, d_inner]`.
    unit: Tensor,
    output: Linear,
    is_packed: bool,
}

/// The factor on steps.
const SHARPNESS: f64 = 8.0;

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
            let of_heads = (0..config.n_heads).map(of_head).collect::<Result<_>>();
            of_heads.map(HeadGate)
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
    fn state_dims(&self) -> [Vec<usize>; 2] {
        [self.config.taps - 1, 1].map(|rows| vec![rows, self.config.d_inner])
    }

    fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(Self {
            rate: single(&self.rates(DType::F32)?)?,
            unit: single(&self.unit)?,
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
        let (train, dtype) = (pass.context.train(), x.dtype());
        let mut states = RecurrentPass::new(self.config.taps, x, pass, state)?;
        let value = states.convolved(&self.value, 1.0)?;
        let rows = value.to_dtype(dtype)?;
        let rate = self.rates(value.dtype())?;
        let steps = self
            .recurrence_gate
            .apply(&rows, train)?
            .multiply_rows(&rate)?;
        let steps = states.beginning(steps.scale(SHARPNESS)?)?;
        let written = self.input_gate.apply(&rows, train)?;
        let written = written.gate(&value, Activation::Identity, None)?;
        let written = written.gate(&steps.decay_complement()?, Activation::Identity, None)?;
        let mut one = value.dims().to_vec();
        one.pop();
        one.push(1);
        let one = value.beside(&Tensor::ones(one, value.dtype(), &value.device())?)?;
        let read = states.scan(&self.unit, [&steps, &one, &one, &written])?;
        states.finish();

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

/// The sigmoids of a projection for each head.
#[derive(Clone, Debug)]
struct HeadGate(Vec<Linear>);

impl HeadGate {
    fn packed(&self, packing: &Packing) -> Result<Self> {
        packing.linears_of(self)
    }

    /// Returns the gates in f32 or f64.
    fn apply(&self, rows: &Value, train: bool) -> Result<Value> {
        let rows = apart(rows, self.0.len())?;
        let gates = self.0.iter().zip(&rows);
        let gates = gates.map(|(of, rows)| of.apply(rows, None, train)?.widened());
        side_by_side(gates.collect::<Result<Vec<_>>>()?.iter())?.activate(Activation::Sigmoid)
    }
}

parts!(HeadGate: Self(heads) => [heads] []);

recurrent!(RgLru: RgLru, "RG-LRU", LRU,
    [value, gate, input_gate, recurrence_gate exact, output]);
