//! Inputs that each layer of a stack has for itself: per-layer embeddings (Gemma 3n and 4).

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;

use crate::config::{Activation, LayerInputConfig, LinearConfig, NormConfig, getters};
use crate::layers::{Linear, Norm, visit::parts};
use crate::ops::Value;

/// Makes the inputs of all layers from a stack's own: of its rows `x` and the parts `w` of their words' rows, those of a layer
/// are `(norm(projection(x) / √d_model) + w) / √2`, or the norm alone where no words are given.
///
/// transformers' `Gemma4TextModel.project_per_layer_inputs`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma4/modeling_gemma4.py>.
#[derive(Clone, Debug)]
pub struct LayerInputs {
    projection: Linear,
    norm: Norm,
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
        vb: &VarBuilder,
    ) -> Result<Self> {
        let vb = vb.pp("layer_inputs");
        let linear = LinearConfig::new(d_model, n_layers * norm.d_model).with_bias(false);
        let projection = Linear::new(&linear, vb.pp("projection"))?;
        Self::from_parts(projection, Norm::new(norm, vb.pp("norm"))?)
    }

    /// Builds the layer from its projection `[n_layers · width, d_model]` and the norm of each part, `[width]`.
    ///
    /// # Errors
    /// If the projection does not consist of such parts.
    pub fn from_parts(projection: Linear, norm: Norm) -> Result<Self> {
        let (rows, width) = (projection.shape().0, norm.config().d_model);
        if width == 0 || !rows.is_multiple_of(width) {
            bail!(
                "layer inputs: a projection to {rows} columns, expected a multiple of the norm's {width}"
            );
        }
        Ok(Self { projection, norm })
    }

    getters! {
        /// The projection of the stack's input, `[n_layers · width, d_model]`.
        projection(&self) -> &Linear => &self.projection;
        /// The norm of each layer's part.
        norm(&self) -> &Norm => &self.norm;
        /// The width of one layer's input.
        width(&self) -> usize => self.norm.config().d_model;
        /// The number of layers.
        n_layers(&self) -> usize => self.projection.shape().0 / self.width();
    }

    /// # Errors
    /// If the rows of words are not as many as those of `x`, or not as wide as all inputs.
    pub(crate) fn check_words(&self, x: &[usize], words: &Tensor) -> Result<()> {
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
    pub(super) fn apply(&self, x: &Value, words: Option<&Tensor>, train: bool) -> Result<Value> {
        let (d_out, d_model) = self.projection.shape();
        let projected = self.projection.apply(x, None, train)?;
        let projected = projected.scale(factor_of_projection(d_model))?;
        let dims = projected.dims().to_vec();
        let n_rows = dims.iter().product::<usize>() / d_out.max(1);
        let parts = projected.reshape(vec![n_rows * self.n_layers(), self.width()])?;
        let inputs = self.norm.apply(&parts)?.reshape(dims.clone())?;
        match words {
            None => Ok(inputs),
            Some(words) => {
                self.check_words(x.dims(), words)?;
                let words = x.beside(words)?.reshape(dims)?;
                inputs.add(&words)?.scale(FACTOR_OF_SUM)
            }
        }
    }
}

parts!(LayerInputs: Self { projection, .. } => [projection] []);

/// Of the sum of projection and words.
pub(crate) const FACTOR_OF_SUM: f64 = std::f64::consts::FRAC_1_SQRT_2;

pub(crate) fn factor_of_projection(d_model: usize) -> f64 {
    1.0 / (d_model as f64).sqrt()
}

/// What a block makes of the input that it has for itself: `output(act(gate(x)) · input)`, which a
/// [`Sublayer`](crate::Sublayer) normalises and adds to `x`.
#[derive(Clone, Debug)]
pub struct GatedInput {
    gate: Linear,
    output: Linear,
    activation: Activation,
}

impl GatedInput {
    /// Gets `gate` and `output` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new(config: &LayerInputConfig, d_model: usize, vb: VarBuilder) -> Result<Self> {
        let linear = |name: &str, d_in: usize, d_out: usize| {
            Linear::new(
                &LinearConfig::new(d_in, d_out).with_bias(false),
                vb.pp(name),
            )
        };
        let gate = linear("gate", d_model, config.width)?;
        let output = linear("output", config.width, d_model)?;
        Self::from_parts(gate, output, config.activation)
    }

    /// Builds the layer from its projections, `[width, d_model]` and `[d_model, width]`.
    ///
    /// # Errors
    /// If they do not fit each other.
    pub fn from_parts(gate: Linear, output: Linear, activation: Activation) -> Result<Self> {
        let gated = Self {
            gate,
            output,
            activation,
        };
        gated.check_shapes()?;
        Ok(gated)
    }

    pub(crate) fn check_shapes(&self) -> Result<()> {
        let (width, d_model) = self.gate.shape();
        self.output
            .expect_shape("layer input", "output", [d_model, width])
    }

    getters! {
        /// The gate, `[width, d_model]`.
        gate(&self) -> &Linear => &self.gate;
        /// The projection back, `[d_model, width]`.
        output(&self) -> &Linear => &self.output;
        /// The activation of the gate.
        activation(&self) -> Activation => self.activation;
    }

    pub(crate) fn widths(&self) -> [usize; 2] {
        [self.gate.shape().1, self.output.shape().0]
    }

    /// The output, added to `residual`.
    pub(super) fn apply(
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

parts!(GatedInput: Self { gate, output, .. } => [gate, output] []);
