//! How alike texts and images are.

use candle_core::{Result, Tensor};
use candle_nn::Init;

use crate::layers::ParameterSource;

/// The likeness of vectors of texts and images: `exp(weight) · cos + bias` (transformers' `CLIPModel`, `SiglipModel`).
///
/// Names in a `VarBuilder`: `weight`, `bias`.
#[derive(Clone, Debug)]
pub struct Similarity {
    weight: Tensor,       // []
    bias: Option<Tensor>, // []
}

impl Similarity {
    /// Gets the numbers `weight` and, if it has one, `bias` from `vb`.
    ///
    /// # Errors
    /// If one is missing or is no single number.
    pub fn new<'p>(bias: bool, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        let bias = bias.then(|| vb.get_with_hints((), "bias", Init::Const(0.0)));
        Ok(Self {
            weight: vb.get_with_hints((), "weight", Init::Const(0.0))?,
            bias: bias.transpose()?,
        })
    }

    /// The likeness of each image `[images, d]` and each text `[texts, d]`, all of length one, as `[images, texts]`.
    ///
    /// # Errors
    /// If their widths differ.
    pub fn forward(&self, images: &Tensor, texts: &Tensor) -> Result<Tensor> {
        let cosines = images.matmul(&texts.t()?)?;
        let scaled = cosines.broadcast_mul(&self.weight.exp()?)?;
        match &self.bias {
            Some(bias) => scaled.broadcast_add(bias),
            None => Ok(scaled),
        }
    }
}
