//! The linear layer, `y = x·Wᵀ + b`.

use candle_core::{Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};

use crate::{
    layers::{DropoutSource, LowRank},
    ops::Value,
};

/// The distribution of fresh parameters of a [`Linear`]. It has no effect on loaded parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum LinearInit {
    /// `torch.nn.Linear`'s default: weight and bias uniform in `±1/√d_in`.
    Torch,
    /// Weight normal with deviation `√(2/d_in)` (He et al. 2015, ReLU gain), bias zero.
    KaimingNormal,
    /// Weight normal with deviation `gain · √(2/(d_in + d_out))` (Glorot and Bengio 2010), bias zero.
    XavierNormal {
        /// Factor on the deviation.
        gain: f64,
    },
}

impl LinearInit {
    /// The candle hints for a weight `[d_out, d_in]` and its bias.
    fn hints(self, d_in: usize, d_out: usize) -> (Init, Init) {
        let normal = |stdev| Init::Randn { mean: 0.0, stdev };
        match self {
            Self::Torch => {
                let bound = torch_bound(d_in);
                let uniform = Init::Uniform {
                    lo: -bound,
                    up: bound,
                };
                (uniform, uniform)
            }
            Self::KaimingNormal => (normal((2.0 / d_in as f64).sqrt()), Init::Const(0.0)),
            Self::XavierNormal { gain } => (
                normal(gain * (2.0 / (d_in + d_out) as f64).sqrt()),
                Init::Const(0.0),
            ),
        }
    }
}

/// The largest absolute value of `torch.nn.Linear`'s fresh parameters: `1/√d_in`, and 0 without inputs.
pub(crate) fn torch_bound(d_in: usize) -> f64 {
    match d_in {
        0 => 0.0,
        _ => 1.0 / (d_in as f64).sqrt(),
    }
}

/// A linear layer over the last dimension, as `torch.nn.Linear`: `y = x·Wᵀ + b`.
///
/// ```
/// use candle_blocks::Linear;
/// use candle_core::{Device, Module, Tensor};
/// let weight = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?; // [out, in]
/// let bias = Tensor::new(&[0.5f32, 0., -0.5], &Device::Cpu)?;
/// let linear = Linear::from_parts(weight, Some(bias))?;
/// let y = linear.forward(&Tensor::new(&[1f32, 1.], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec1::<f32>()?, [3.5, 7., 10.5]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor, // [d_out, d_in]
    bias: Option<Tensor>,
    adapter: Option<LowRank>,
}

impl Linear {
    /// Gets `weight` `[d_out, d_in]` and, if `bias` is true, `bias` `[d_out]` from `vb`; fresh ones are drawn as
    /// [`LinearInit::Torch`].
    pub fn new(d_in: usize, d_out: usize, bias: bool, vb: VarBuilder) -> Result<Self> {
        Self::with_init(d_in, d_out, bias, LinearInit::Torch, vb)
    }

    /// Like [`Self::new`], but with the given initialization of fresh parameters.
    pub fn with_init(
        d_in: usize,
        d_out: usize,
        bias: bool,
        init: LinearInit,
        vb: VarBuilder,
    ) -> Result<Self> {
        let (weight_hint, bias_hint) = init.hints(d_in, d_out);
        let weight = vb.get_with_hints((d_out, d_in), "weight", weight_hint)?;
        let bias = bias
            .then(|| vb.get_with_hints(d_out, "bias", bias_hint))
            .transpose()?;
        Ok(Self {
            weight,
            bias,
            adapter: None,
        })
    }

    /// Builds the layer from a weight `[d_out, d_in]` and an optional bias `[d_out]`.
    ///
    /// # Errors
    /// If a shape is different.
    pub fn from_parts(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let (d_out, d_in) = weight.dims2()?;
        if let Some(bias) = &bias
            && bias.dims() != [d_out]
        {
            bail!(
                "linear: bias has shape {:?}, expected [{d_out}] for a weight of [{d_out}, {d_in}]",
                bias.dims()
            );
        }
        Ok(Self {
            weight,
            bias,
            adapter: None,
        })
    }

    /// Adds a low-rank adapter (LoRA) beside the weight; [`Self::merged`] folds it into the weight.
    ///
    /// # Errors
    /// If the adapter does not have the input and output widths of the weight.
    pub fn with_adapter(mut self, adapter: LowRank) -> Result<Self> {
        let (d_out, d_in) = self.weight.dims2()?;
        let (a, b) = (adapter.a().dims(), adapter.b().dims());
        if (b[0], a[1]) != (d_out, d_in) {
            bail!("linear: an adapter of {a:?} and {b:?} for a weight of [{d_out}, {d_in}]");
        }
        self.adapter = Some(adapter);
        Ok(self)
    }

    /// The low-rank adapter, if any.
    pub fn adapter(&self) -> Option<&LowRank> {
        self.adapter.as_ref()
    }

    /// A copy of the layer with the adapter folded into the weight: the same function in evaluation, without the cost
    /// of the adapter.
    pub fn merged(&self) -> Result<Self> {
        let weight = match &self.adapter {
            Some(adapter) => (&self.weight + adapter.product()?)?,
            None => self.weight.clone(),
        };
        Self::from_parts(weight, self.bias.clone())
    }

    /// Makes the adapter draw its dropout masks from `source`.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        if let Some(adapter) = &mut self.adapter {
            adapter.dropout.set_source(source.clone());
        }
    }

    /// Like [`Module::forward`], but with the adapter's dropout on. (candle's blanket `ModuleT::forward_t` ignores its
    /// flag: code that is generic over `ModuleT` trains without that dropout.)
    pub fn forward_training(&self, x: &Tensor) -> Result<Tensor> {
        Value::through(x, |x| self.apply(x, None, true))
    }

    /// The output, added to `residual`.
    pub(super) fn apply(&self, x: &Value, residual: Option<&Value>, train: bool) -> Result<Value> {
        let (weight, bias) = (&self.weight, self.bias.as_ref());
        let Some(adapter) = &self.adapter else {
            return x.linear(weight, bias, residual);
        };
        let low_rank = adapter.apply(x, train)?;
        let y = x.linear(weight, bias, Some(&low_rank))?;
        y.added_to(residual)
    }

    /// Whether a parameter is to get a gradient.
    pub(super) fn is_tracked(&self) -> bool {
        let own = [Some(&self.weight), self.bias.as_ref()];
        let adapter = self.adapter().into_iter();
        let low_rank = adapter.flat_map(|adapter| [adapter.a(), adapter.b()]);
        own.into_iter()
            .flatten()
            .chain(low_rank)
            .any(Tensor::track_op)
    }

    /// # Errors
    /// If the weight of this layer, in this role of that one, has not the given shape.
    pub(crate) fn expect_shape(&self, of: &str, role: &str, shape: [usize; 2]) -> Result<()> {
        let found = self.weight.dims();
        if found != shape {
            bail!("{of}: {role} has shape {found:?}, expected {shape:?}");
        }
        Ok(())
    }

    /// The weight, `[d_out, d_in]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `[d_out]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl Module for Linear {
    /// `torch.nn.functional.linear(x, weight, bias)`.
    ///
    /// # Shapes
    /// `[.., d_in]` of rank 1 or more, to `[.., d_out]`.
    ///
    /// # Errors
    /// If the last dimension is not `d_in`, or input and weight differ in dtype.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Value::through(x, |x| self.apply(x, None, false))
    }
}
