//! Inputs that each layer of a stack has for itself: per-layer embeddings (Gemma 3n and 4).

use candle_core::{Result, Tensor, bail};

use crate::config::{Activation, LayerInputConfig, LinearConfig, NormConfig};
use crate::layers::{Linear, Norm, ParameterSource, visit::parts};
use crate::ops::Value;

/// Makes the inputs of all layers from a stack's own: of its rows `x` and the parts `w` of their words' rows, those of a layer
/// are `(norm(projection(x) / √d_model) + w) / √2`, or the norm alone where no words are given.
///
/// transformers' `Gemma4TextModel.project_per_layer_inputs`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma4/modeling_gemma4.py>.
#[derive(Clone, Debug)]
pub(crate) struct LayerInputs {
    /// `[n_layers · width, d_model]`
    pub projection: Linear,
    /// The norm of each layer's part.
    pub norm: Norm,
}

impl LayerInputs {
    /// Gets `layer_inputs.projection` and `layer_inputs.norm` from `vb`, for so many layers of this width.
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

    /// The width of one layer's input.
    pub fn width(&self) -> usize {
        self.norm.config().d_model
    }

    /// # Errors
    /// If the rows of words are not as many as those of `x`, or not as wide as all inputs.
    fn check_words(&self, x: &[usize], words: &Tensor) -> Result<()> {
        let rows = |dims: &[usize]| {
            dims[..dims.len().saturating_sub(1)]
                .iter()
                .product::<usize>()
        };
        let (found, width) = (words.dims(), self.projection.shape().0);
        if found.last() != Some(&width) || rows(found) != rows(x) {
            bail!(
                "layer inputs: words of {found:?} for hidden states of {x:?}, expected rows of {width}"
            );
        }
        Ok(())
    }

    /// The inputs of all layers side by side, `[.., n_layers · width]`.
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

/// Of the sum of projection and words.
const FACTOR_OF_SUM: f64 = std::f64::consts::FRAC_1_SQRT_2;

fn factor_of_projection(d_model: usize) -> f64 {
    1.0 / (d_model as f64).sqrt()
}

/// What a block makes of the input that it has for itself: `output(act(gate(x)) · input)`, which a
/// [`Sublayer`](crate::Sublayer) normalises and adds to `x`.
#[derive(Clone, Debug)]
pub(crate) struct GatedInput {
    /// `[width, d_model]`
    pub gate: Linear,
    /// `[d_model, width]`
    pub output: Linear,
    pub activation: Activation,
}

impl GatedInput {
    /// Gets `gate` and `output` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &LayerInputConfig,
        d_model: usize,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        let linear = |name: &str, d_in: usize, d_out: usize| {
            Linear::new(
                &LinearConfig::new(d_in, d_out).with_bias(false),
                vb.pp(name),
            )
        };
        Ok(Self {
            gate: linear("gate", d_model, config.width)?,
            output: linear("output", config.width, d_model)?,
            activation: config.activation,
        })
    }

    /// The output, added to `residual`.
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
