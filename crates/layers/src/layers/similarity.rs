//! Similarity between texts and images.

use candle_core::{Result, Tensor};
use candle_nn::Init;

use crate::layers::ParameterSource;

/// The similarity between text and image vectors: `exp(weight) · cos + bias` (transformers' `CLIPModel`,
/// `SiglipModel`).
///
/// Names in a `VarBuilder`: `weight`, `bias`.
#[derive(Clone, Debug)]
pub struct Similarity {
    weight: Tensor,       // []
    bias: Option<Tensor>, // []
}

impl Similarity {
    /// Creates the layer with the scalars `weight` and, if configured, `bias` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or is not a scalar.
    pub fn new<'p>(bias: bool, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        let bias = bias.then(|| vb.get_with_hints((), "bias", Init::Const(0.0)));
        Ok(Self {
            weight: vb.get_with_hints((), "weight", Init::Const(0.0))?,
            bias: bias.transpose()?,
        })
    }

    /// Returns the similarity of each image `[images, d]` and each text `[texts, d]`, as `[images, texts]`. All
    /// vectors must have length one.
    ///
    /// # Errors
    /// If the widths differ.
    pub fn forward(&self, images: &Tensor, texts: &Tensor) -> Result<Tensor> {
        let cosines = images.matmul(&texts.t()?)?;
        let scaled = cosines.broadcast_mul(&self.weight.exp()?)?;
        match &self.bias {
            Some(bias) => scaled.broadcast_add(bias),
            None => Ok(scaled),
        }
    }
}
