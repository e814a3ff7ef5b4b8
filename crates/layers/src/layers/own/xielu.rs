//! xIELU, an activation with parameters.

use candle_core::{Module, Result, Tensor, bail};
use candle_nn::Init;

use crate::config::XieluConfig;
use crate::layers::ParameterSource;
use crate::ops::{Value, XieluNumbers};

/// xIELU: `softplus(p) · x² + s · x` for positive x, else `(s + softplus(n)) · (exp(min(x, k)) - 1 - x) + s · x`
/// (Huang and Schlag 2024, <https://arxiv.org/abs/2411.13010>). p and n are learned; s and k have no gradients.
///
/// Equal to transformers' `XIELUActivation`
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/activations.py>).
#[derive(Clone, Debug)]
pub struct Xielu {
    /// `[1]`
    positive: Tensor,
    /// `[1]`
    negative: Tensor,
    /// `[]`
    slope: Tensor,
    /// `[]`
    knee: Tensor,
}

impl Xielu {
    /// Creates the layer with `positive.weight` and `negative.weight` of shape `[1]` and `slope.weight` and
    /// `knee.weight` of shape `[]` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new<'p>(config: &XieluConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        let learned = |name, after: f64| {
            let before = after.exp_m1().ln();
            vb.pp(name).get_with_hints(1, "weight", Init::Const(before))
        };
        let fixed = |name, value| vb.pp(name).get_with_hints((), "weight", Init::Const(value));
        Self::from_parts(
            learned("positive", config.positive)?,
            learned("negative", config.negative - config.slope)?,
            fixed("slope", config.slope)?,
            fixed("knee", config.knee)?,
        )
    }

    /// Builds the layer from p and n, with shape `[1]`, and s and k, with shape `[]`.
    ///
    /// # Errors
    /// If a shape is different.
    pub fn from_parts(
        positive: Tensor,
        negative: Tensor,
        slope: Tensor,
        knee: Tensor,
    ) -> Result<Self> {
        for (name, tensor, expected) in [
            ("positive", &positive, &[1][..]),
            ("negative", &negative, &[1]),
            ("slope", &slope, &[]),
            ("knee", &knee, &[]),
        ] {
            if tensor.dims() != expected {
                let found = tensor.dims();
                bail!("xIELU: {name} has shape {found:?}, expected {expected:?}");
            }
        }
        Ok(Self {
            positive,
            negative,
            slope,
            knee,
        })
    }

    /// Returns the parameters that have gradients.
    pub(in crate::layers) fn parameters(&self) -> [&Tensor; 2] {
        [&self.positive, &self.negative]
    }

    pub(crate) fn numbers(&self) -> XieluNumbers<'_> {
        XieluNumbers {
            positive: &self.positive,
            negative: &self.negative,
            slope: &self.slope,
            knee: &self.knee,
        }
    }

    pub(in crate::layers) fn apply(&self, x: &Value) -> Result<Value> {
        x.xielu(self.numbers())
    }
}

impl Module for Xielu {
    /// # Shapes
    /// Any shape, to the same shape.
    ///
    /// # Errors
    /// If `x` has no float dtype.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Value::through(x, |x| self.apply(x))
    }
}
