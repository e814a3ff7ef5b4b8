//! Per-layer inputs (per-layer embeddings of Gemma 3n and 4).

use candle_core::{Result, Tensor, bail};

use crate::config::{Activation, LayerInputConfig, LinearConfig, NormConfig};
use crate::layers::{Linear, Norm, ParameterSource, visit::parts};
use crate::ops::Value;

/// Computes the inputs of all layers from a stack's input rows `x` and token rows `w`. A layer's input is
/// `(norm(projection(x) / √d_model) + w) / √2`, or only the norm if there are no token rows.
///
/// transformers' `Gemma4TextModel.project_per_layer_inputs`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma4/modeling_gemma4.py>.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct LayerInputs {
    /// `[n_layers · width, d_model]`
    pub projection: Linear,
    /// The norm for each layer's part.
    pub norm: Norm,
}

impl LayerInputs {
    /// Creates `layer_inputs.projection` and `layer_inputs.norm` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new(
        norm: &NormConfig,
        n_layers: usize,
        d_model: usize,
        vb: &ParameterSource,
    ) -> Result<Self> {
        let vb = vb.pp("layer_inputs");
        let linear = LinearConfig::new(d_model, n_layers * norm.d_model).with_bias(false);
        Ok(Self {
            projection: Linear::new(&linear, vb.pp("projection"))?,
            norm: Norm::new(norm, vb.pp("norm"))?,
        })
    }

    /// Returns the width of one layer's input.
    pub fn width(&self) -> usize {
        self.norm.config().d_model
    }

    /// # Errors
    /// If token rows and `x` differ in number, or a token row is not as wide as all inputs together.
    fn check_words(&self, x: &[usize], words: &Tensor) -> Result<()> {
        let rows = |dims: &[usize]| {
            dims[..dims.len().saturating_sub(1)]
                .iter()
                .product::<usize>()
        };
        let (found, width) = (words.dims(), self.projection.shape().0);
        if found.last() != Some(&width) || rows(found) != rows(x) {
            bail!(
                "layer inputs: token rows have shape {found:?} for hidden states {x:?}, expected a last dimension of {width}"
            );
        }
        Ok(())
    }

    /// Returns the inputs of all layers side by side, `[.., n_layers · width]`.
    pub(in crate::layers) fn apply(
        &self,
        x: &Value,
        words: Option<&Tensor>,
        train: bool,
    ) -> Result<Value> {
        let (d_out, d_model) = self.projection.shape();
        let projected = self.projection.apply(x, None, train)?;
        let projected = projected.scale(factor_of_projection(d_model))?;
        let dims = projected.dims().to_vec();
        let n_rows = dims.iter().product::<usize>() / d_out.max(1);
        let parts = projected.reshape(vec![n_rows * d_out / self.width(), self.width()])?;
        let inputs = self.norm.apply(&parts)?.reshape(dims.clone())?;
        match words {
            None => Ok(inputs),
            Some(words) => {
                self.check_words(x.dims(), words)?;
                let words = words.to_dtype(x.dtype())?;
                let words = x.beside(&words)?.reshape(dims)?;
                inputs.add(&words)?.scale(FACTOR_OF_SUM)
            }
        }
    }
}

parts!(LayerInputs: Self { projection, .. } => [] [projection]);

/// The factor on the sum of projection and token rows.
const FACTOR_OF_SUM: f64 = std::f64::consts::FRAC_1_SQRT_2;

fn factor_of_projection(d_model: usize) -> f64 {
    1.0 / (d_model as f64).sqrt()
}

/// The gate for a block's per-layer input: `output(act(gate(x)) · input)`. A [`Sublayer`](crate::Sublayer) normalizes
/// it and adds it to `x`.
#[derive(Clone, Debug)]
pub(crate) struct GatedInput {
    /// `[width, d_model]`
    pub gate: Linear,
    /// `[d_model, width]`
    pub output: Linear,
    pub activation: Activation,
}

impl GatedInput {
    /// Creates the layer with `gate` and `output` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &LayerInputConfig,
        d_model: usize,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        let linear = |name: &str, d_in, d_out| Linear::unbiased([d_in, d_out], vb.pp(name));
        Ok(Self {
            gate: linear("gate", d_model, config.width)?,
            output: linear("output", config.width, d_model)?,
            activation: config.activation,
        })
    }

    /// Computes the output and adds it to `residual`.
    pub(in crate::layers) fn apply(
        &self,
        x: &Value,
        input: &Value,
        residual: Option<&Value>,
        train: bool,
    ) -> Result<Value> {
        let gate = self.gate.apply(x, None, train)?;
        let input = input.reshape(gate.dims().to_vec())?;
        let gated = gate.gate(&input, self.activation, None)?;
        self.output.apply(&gated, residual, train)
    }
}

parts!(GatedInput: Self { gate, output, .. } => [] [gate, output]);
