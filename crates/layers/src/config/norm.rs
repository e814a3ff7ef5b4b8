//! The configuration of norms.

use serde::{Deserialize, Serialize};

use super::{expect, setters, size};
use crate::error::Result;

/// The kind of norm. Set it in [`NormConfig::kind`](crate::NormConfig::kind).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` (Ba et al. 2016, <https://arxiv.org/abs/1607.06450>).
    LayerNorm,
    /// `x / sqrt(mean(x²) + eps) * weight` (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>).
    RmsNorm,
}

/// The use of a norm's stored weight. Set it in [`NormConfig::weight`](crate::NormConfig::weight).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NormWeight {
    /// `x̂ · w`, with `x̂` rounded to the model's dtype before the product (Llama, BERT, GPT-2 ...).
    Plain,
    /// `x̂ · (1 + w)`, computed in f32 and rounded after the product (Gemma).
    OnePlus,
    /// `x̂`, without a weight (OLMo).
    Absent,
}

/// The configuration of a norm over the last dimension. Pass it to [`Norm::new`](crate::Norm::new).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct NormConfig {
    /// LayerNorm or RMSNorm.
    pub kind: NormKind,
    /// The width of the last dimension.
    pub d_model: usize,
    /// The constant added to the variance (or mean square) before the square root.
    pub eps: f64,
    /// The norm has an additive bias.
    pub bias: bool,
    /// The use of the weight.
    pub weight: NormWeight,
}

impl NormConfig {
    /// Returns a LayerNorm with weight and bias, like `torch.nn.LayerNorm(d_model, eps)`.
    pub fn layer_norm(d_model: usize, eps: f64) -> Self {
        Self {
            kind: NormKind::LayerNorm,
            d_model,
            eps,
            bias: true,
            weight: NormWeight::Plain,
        }
    }

    /// Returns an RMSNorm with weight and no bias, like `torch.nn.RMSNorm(d_model, eps)`.
    pub fn rms_norm(d_model: usize, eps: f64) -> Self {
        Self {
            kind: NormKind::RmsNorm,
            bias: false,
            ..Self::layer_norm(d_model, eps)
        }
    }

    setters! {
        /// Sets whether the norm has an additive bias.
        with_bias(bias: bool) => bias = bias;
        /// Sets the use of the weight.
        with_weight(weight: NormWeight) => weight = weight;
    }

    /// Checks width and eps.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if the width is 0 or eps is negative or not finite.
    pub fn validate(&self) -> Result<()> {
        size("d_model", self.d_model)?;
        self.validate_eps()
    }

    /// Checks only eps, for a norm whose width is set elsewhere.
    pub(super) fn validate_eps(&self) -> Result<()> {
        let fits = self.eps.is_finite() && self.eps >= 0.0;
        let kind = "a small number that is not negative";
        expect("the norm's eps", self.eps, fits, kind)
    }
}
