//! LayerNorm and RMSNorm.

use std::sync::Arc;

use candle_blocks_kernels::rows::RowNorm;
use candle_core::{DType, Module, Result, Tensor, bail};
use candle_nn::Init;

use crate::config::{NormConfig, NormWeight, getters};
use crate::layers::ParameterSource;
use crate::ops::Value;

pub(in crate::layers) mod packed;

/// Normalization over the last dimension: LayerNorm or RMSNorm, with or without bias, with a weight of `w` or `1 +
/// w`.
///
/// Mean and variance are computed in two passes, so a large mean costs no precision. The norm is differentiable on
/// every device, unlike `candle_nn::LayerNorm` on contiguous input.
///
/// ```
/// use candle_blocks::{Norm, NormConfig};
/// use candle_core::{Device, Module, Tensor};
/// let (ones, zeros) = (Tensor::new(&[1f32; 2], &Device::Cpu)?, Tensor::new(&[0f32; 2], &Device::Cpu)?);
/// let norm = Norm::from_parts(ones, Some(zeros), NormConfig::layer_norm(2, 0.0))?;
/// let y = norm.forward(&Tensor::new(&[1f32, 3.], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec1::<f32>()?, [-1., 1.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[doc(alias = "LayerNorm")]
#[doc(alias = "RmsNorm")]
#[derive(Clone, Debug)]
pub struct Norm {
    weight: Tensor, // [d_model]
    bias: Option<Tensor>,
    config: NormConfig,
    /// The parameters for the kernels, in a packed layer.
    packed: Option<Arc<RowNorm>>,
}

impl Norm {
    /// Creates the norm with `weight` and, if configured, `bias` from `vb`, both `[d_model]`. Fresh parameters make
    /// it the identity after normalization.
    pub fn new<'p>(config: &NormConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        let weight = match config.weight {
            NormWeight::Absent => Tensor::ones(config.d_model, vb.dtype(), vb.device())?,
            NormWeight::Plain => vb.get_with_hints(config.d_model, "weight", Init::Const(1.0))?,
            NormWeight::OnePlus => vb.get_with_hints(config.d_model, "weight", Init::Const(0.0))?,
        };
        let bias = config
            .bias
            .then(|| vb.get_with_hints(config.d_model, "bias", Init::Const(0.0)))
            .transpose()?;
        Ok(Self {
            weight,
            bias,
            config: *config,
            packed: None,
        })
    }

    /// Builds the norm from a weight and an optional bias, both `[d_model]`. A norm without a weight
    /// ([`NormWeight::Absent`]) uses only the dtype and the device of the tensor.
    ///
    /// # Errors
    /// If a shape is different, or bias and configuration disagree.
    pub fn from_parts(weight: Tensor, bias: Option<Tensor>, config: NormConfig) -> Result<Self> {
        let expected = [config.d_model];
        if weight.dims() != expected {
            let found = weight.dims();
            bail!("norm: weight has shape {found:?}, expected {expected:?}");
        }
        match (&bias, config.bias) {
            (Some(bias), true) if bias.dims() != expected => {
                let found = bias.dims();
                bail!("norm: bias has shape {found:?}, expected {expected:?}");
            }
            (Some(_), false) => bail!("norm: a bias is given, but the configuration has no bias"),
            (None, true) => bail!("norm: the configuration has a bias, but no bias is given"),
            _ => {}
        }
        let weight = match config.weight {
            NormWeight::Absent => weight.ones_like()?,
            NormWeight::Plain | NormWeight::OnePlus => weight,
        };
        Ok(Self {
            weight,
            bias,
            config,
            packed: None,
        })
    }

    /// Returns the norm with its parameters in another dtype. The graph goes through the conversion.
    pub(crate) fn in_dtype(&self, dtype: DType) -> Result<Self> {
        let bias = self.bias.as_ref().map(|bias| bias.to_dtype(dtype));
        Ok(Self {
            weight: self.weight.to_dtype(dtype)?,
            bias: bias.transpose()?,
            config: self.config,
            packed: None,
        })
    }

    /// Returns the norm with its parameters for the kernels too.
    pub(crate) fn with_packed(&self, packed: RowNorm) -> Self {
        Self {
            packed: Some(Arc::new(packed)),
            ..self.clone()
        }
    }

    /// Returns the normalized rows. In a packed layer, the product that reads them normalizes them.
    pub(in crate::layers) fn apply(&self, x: &Value) -> Result<Value> {
        let x = match &self.packed {
            Some(norm) => match x.clone().normalized_by(norm)? {
                Ok(normal) => return Ok(normal),
                Err(other) => other,
            },
            None => x.clone(),
        };
        x.norm(&self.weight, self.bias.as_ref(), &self.config)
    }

    /// Returns the normalized rows, in a packed layer in the memory of `x`.
    pub(in crate::layers) fn apply_in_place(&self, x: Value) -> Result<Value> {
        let x = match &self.packed {
            Some(norm) => match x.into_normalized(norm)? {
                Ok(normal) => return Ok(normal),
                Err(other) => other,
            },
            None => x,
        };
        x.norm(&self.weight, self.bias.as_ref(), &self.config)
    }

    getters! {
        /// The weight as stored, `[d_model]`; ones if the norm has none.
        weight(&self) -> &Tensor => &self.weight;
        /// The bias, if any, `[d_model]`.
        bias(&self) -> Option<&Tensor> => self.bias.as_ref();
        /// The configuration: kind, width, eps, and form of the weight.
        config(&self) -> &NormConfig => &self.config;
    }
}

impl Module for Norm {
    /// Computes `torch.nn.functional.layer_norm` or `rms_norm` over the last dimension.
    ///
    /// # Shapes
    /// `[.., d_model]` of rank 1 or more, to the same shape.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Value::through(x, |x| self.apply(x))
    }
}
