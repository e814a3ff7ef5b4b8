//! Gated short convolutions.

use candle_core::{Result, Tensor};

use super::layer::recurrent;
use super::recurrent::{single, taps_apart};
use crate::config::{Activation, LinearConfig, ShortConvolutionConfig, getters};
use crate::layers::packed::Packing;
use crate::layers::pass::Pass;
use crate::layers::{Linear, ParameterSource, state::LayerState};
use crate::ops::Value;

/// A gated short convolution, LFM2's mixer. [`ShortConvolutionConfig`] has the formula.
///
/// ```
/// use candle_blocks::config::ShortConvolutionConfig;
/// use candle_blocks::layers::ShortConvolution;
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
/// let convolution = ShortConvolution::new(&ShortConvolutionConfig::new(8, 3), vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?; // [batch, seq, d_model]
/// assert_eq!(convolution.forward(&x)?.dims(), [2, 5, 8]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShortConvolution {
    config: ShortConvolutionConfig,
    input: Linear,
    weight: Tensor,
    bias: Option<Tensor>,
    output: Linear,
    is_packed: bool,
}

impl ShortConvolution {
    /// Creates the layer with parameters from `vb`: `input` `[3 · d_model, d_model]`, `weight` `[d_model, 1, taps]` as
    /// in `torch.nn.Conv1d`, and `output` `[d_model, d_model]`. If configured, each has a bias.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &ShortConvolutionConfig,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let &ShortConvolutionConfig {
            d_model,
            taps,
            bias,
        } = config;
        let linear = |name, d_out| {
            let config = LinearConfig::new(d_model, d_out).with_bias(bias);
            Linear::new(&config, vb.pp(name))
        };
        let of_convolution = bias.then(|| vb.get(d_model, "bias"));
        Ok(Self {
            config: *config,
            input: linear("input", 3 * d_model)?,
            weight: vb.get((d_model, 1, taps), "weight")?,
            bias: of_convolution.transpose()?,
            output: linear("output", d_model)?,
            is_packed: false,
        })
    }

    getters! {
        /// Width, taps and biases.
        config(&self) -> &ShortConvolutionConfig => &self.config;
        /// The projection to both gates and the convolution's input, `[3 · d_model, d_model]`.
        input(&self) -> &Linear => &self.input;
        /// The convolution's weights, `[d_model, 1, taps]`.
        weight(&self) -> &Tensor => &self.weight;
        /// The convolution's bias, `[d_model]`, if any.
        bias(&self) -> Option<&Tensor> => self.bias.as_ref();
        /// The output projection, `[d_model, d_model]`.
        output(&self) -> &Linear => &self.output;
    }

    /// Returns the state's dimensions after the batch.
    fn state_dims(&self) -> [Vec<usize>; 1] {
        [vec![self.config.taps - 1, self.config.d_model]]
    }

    /// Computes the output for positions after the state's, and adds it to `residual`.
    fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut LayerState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        let state = state.map(LayerState::as_recurrent).transpose()?;
        let (d_model, train) = (self.config.d_model, pass.context.train());
        let all = self.input.apply(x, None, train)?;
        let [before_gate, after_gate, x] =
            [0, 1, 2].map(|part| all.columns(part * d_model..(part + 1) * d_model));
        let rows = before_gate.gate(&x, Activation::Identity, None)?;
        let earlier = state.as_ref().and_then(|state| state.tensor(0));
        let table = pass.tap_table(self.config.taps, earlier.is_some())?;
        let mixed = rows.convolve(&self.weight, self.bias.as_ref(), earlier, &table)?;
        if let Some(state) = state {
            let after = rows.rows_after(state.tensor(0), &table)?;
            state.advance(pass.seen + pass.seq, vec![after]);
        }
        let [after_gate, mixed] = [after_gate, mixed].map(|rows| pass.requested_rows(rows));
        let mixed = after_gate?.gate(&mixed?, Activation::Identity, None)?;
        self.output.apply(&mixed, residual, train)
    }

    /// The convolution stays in f32 in every precision.
    fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(Self {
            weight: taps_apart(&self.weight)?,
            bias: self.bias.as_ref().map(single).transpose()?,
            ..self.with_packed_parts(packing)?
        })
    }
}

recurrent!(ShortConvolution: ShortConvolution, "short convolution", CONVOLUTION, [input, output]);
