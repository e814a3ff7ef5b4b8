//! `y = x·Wᵀ + b`.

use candle_core::{Module, ModuleT, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};

use crate::{
    layers::{DropoutSource, LowRank},
    ops,
};

/// How fresh parameters of a [`Linear`] are drawn. Loaded parameters ignore it.
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
                let bound = 1.0 / (d_in as f64).sqrt();
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

/// An affine map of the last dimension, as `torch.nn.Linear`: `y = x·Wᵀ + b`.
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
    /// Takes `weight` `[d_out, d_in]` and, if asked for, `bias` `[d_out]` from `vb`, with
    /// [`LinearInit::Torch`] where they are fresh.
    pub fn new(d_in: usize, d_out: usize, bias: bool, vb: VarBuilder) -> Result<Self> {
        Self::with_init(d_in, d_out, bias, LinearInit::Torch, vb)
    }

    /// As [`Self::new`], with another initialisation of fresh parameters.
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

    /// Of a weight `[d_out, d_in]` and a bias `[d_out]`.
    ///
    /// # Errors
    /// If the shapes are others than these.
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

    /// With a low-rank change beside the weight, which [`Self::merged`] makes part of it.
    ///
    /// # Errors
    /// If its shapes are not the weight's.
    pub fn with_adapter(mut self, adapter: LowRank) -> Result<Self> {
        let (d_out, d_in) = self.weight.dims2()?;
        let (a, b) = (adapter.a().dims(), adapter.b().dims());
        if (b[0], a[1]) != (d_out, d_in) {
            bail!("linear: an adapter of {a:?} and {b:?} for a weight of [{d_out}, {d_in}]");
        }
        self.adapter = Some(adapter);
        Ok(self)
    }

    /// The low-rank change, if there is one.
    pub fn adapter(&self) -> Option<&LowRank> {
        self.adapter.as_ref()
    }

    /// The layer with its low-rank change in the weight: the same function in evaluation, as fast as before.
    pub fn merged(&self) -> Result<Self> {
        let weight = match &self.adapter {
            Some(adapter) => (&self.weight + adapter.product()?)?,
            None => self.weight.clone(),
        };
        Self::from_parts(weight, self.bias.clone())
    }

    /// Draws the adapter's dropout masks from `source` from now on.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        if let Some(adapter) = &mut self.adapter {
            adapter.dropout.set_source(source.clone());
        }
    }

    /// As [`Module::forward`], with the adapter's dropout if `train`. It hides candle's `ModuleT::forward_t` of the
    /// same name, which ignores the flag: a generic `impl ModuleT` trains without that dropout.
    pub fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let y = ops::linear(x, &self.weight, self.bias.as_ref())?;
        match &self.adapter {
            Some(adapter) => y + adapter.forward_t(x, train)?,
            None => Ok(y),
        }
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
    /// `[.., d_in]` of any rank from 1 to `[.., d_out]`.
    ///
    /// # Errors
    /// If the last dimension is not `d_in`, or the types differ.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_t(x, false)
    }
}
