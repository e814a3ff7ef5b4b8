//! The linear layer, `y = x·Wᵀ + b`.

use candle_core::{Module, Result, Tensor, Var, bail};
use candle_nn::Init;

use crate::config::{LinearConfig, LinearInit, getters};
use crate::layers::{Dropout, DropoutSource, LowRank, ParameterSource};
use crate::ops::{Packed, Value, Weight, store};

pub(in crate::layers) mod packed;
mod through_rank;

pub(in crate::layers) use through_rank::ThroughRank;

/// Returns candle's initialization hints for a layer's weight and bias.
fn hints(config: &LinearConfig) -> (Init, Init) {
    let normal = |stdev| (Init::Randn { mean: 0.0, stdev }, Init::Const(0.0));
    let (d_in, d_out) = (config.d_in as f64, config.d_out as f64);
    match config.init {
        LinearInit::Torch => {
            let up = torch_bound(config.d_in);
            (Init::Uniform { lo: -up, up }, Init::Uniform { lo: -up, up })
        }
        LinearInit::KaimingNormal => normal((2.0 / d_in).sqrt()),
        LinearInit::XavierNormal { gain } => normal(gain * (2.0 / (d_in + d_out)).sqrt()),
    }
}

/// Returns the largest absolute value of `torch.nn.Linear`'s fresh parameters: `1/√d_in`, or 0 without inputs.
#[doc(hidden)]
pub fn torch_bound(d_in: usize) -> f64 {
    match d_in {
        0 => 0.0,
        _ => 1.0 / (d_in as f64).sqrt(),
    }
}

/// A linear layer over the last dimension, like `torch.nn.Linear`: `y = x·Wᵀ + b`.
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
    weight: Weight, // [d_out, d_in]
    bias: Option<Tensor>,
    adapter: Option<LowRank>,
    /// The weight and the bias before they were frozen under the adapter.
    unfrozen: Option<Box<(Weight, Option<Tensor>)>>,
}

impl Linear {
    /// Creates the layer with `weight` `[d_out, d_in]` and, if configured, `bias` `[d_out]` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new<'p>(config: &LinearConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        let &LinearConfig {
            d_in, d_out, bias, ..
        } = config;
        let (weight_init, bias_init) = hints(config);
        let weight = vb.weight((d_out, d_in), weight_init)?;
        let bias = bias.then(|| vb.get_with_hints(d_out, "bias", bias_init));
        let linear = Self::from_weight(weight, bias.transpose()?)?;
        linear.expect_shape("linear", "weight", [d_out, d_in])?; // not every backend checks it
        Ok(linear)
    }

    /// Creates the layer with `weight` `[d_out, d_in]` from `vb`, without a bias.
    ///
    /// # Errors
    /// If the parameter is missing or has another shape.
    pub(in crate::layers) fn unbiased<'p>(
        [d_in, d_out]: [usize; 2],
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        Self::new(&LinearConfig::new(d_in, d_out).with_bias(false), vb)
    }

    /// Builds the layer from a weight `[d_out, d_in]` and an optional bias `[d_out]`.
    ///
    /// # Errors
    /// If a shape is different.
    pub fn from_parts(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        Self::from_weight(Weight::Dense(weight), bias)
    }

    /// Builds the layer like [`Self::from_parts`], from a weight in any form.
    #[doc(hidden)]
    pub fn from_weight(weight: Weight, bias: Option<Tensor>) -> Result<Self> {
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
            unfrozen: None,
        })
    }

    /// Returns a copy of the layer that trains this adapter alone. [`Self::after_merge`] ends that.
    ///
    /// # Errors
    /// Same as for [`Self::with_adapter`].
    #[doc(hidden)]
    pub fn frozen_under(&self, adapter: LowRank) -> Result<Self> {
        let bias = self.bias.as_ref();
        let frozen = Self::from_weight(self.weight.detached(), bias.map(Tensor::detach))?;
        let unfrozen = Box::new((self.weight.clone(), self.bias.clone()));
        Ok(Self {
            unfrozen: Some(unfrozen),
            ..frozen.with_adapter(adapter)?
        })
    }

    /// Adds a low-rank adapter (LoRA) beside the weight. [`Self::merged`] folds it into the weight.
    ///
    /// # Errors
    /// If the adapter's input or output width differs from the weight's, or its dtype does not fit the weight's.
    pub fn with_adapter(mut self, adapter: LowRank) -> Result<Self> {
        let (d_out, d_in) = self.shape();
        let (a, b) = (adapter.a().dims(), adapter.b().dims());
        if (b[0], a[1]) != (d_out, d_in) {
            bail!(
                "linear: adapter factors have shapes {a:?} and {b:?}, which do not fit a weight of [{d_out}, {d_in}]"
            );
        }
        if let Weight::Joined(..) = self.weight {
            bail!("linear: a packed layer takes no adapter; add the adapter before you pack");
        }
        adapter.check_beside(self.weight.dtype())?;
        self.adapter = Some(adapter);
        Ok(self)
    }

    getters! {
        /// The low-rank adapter, if any.
        adapter(&self) -> Option<&LowRank> => self.adapter.as_ref();
        /// The bias, `[d_out]`.
        bias(&self) -> Option<&Tensor> => self.bias.as_ref();
    }

    /// Returns the weight, `[d_out, d_in]`. Every call dequantizes a weight that is kept quantized
    /// (`Weights::AsStored`). A packed weight
    /// ([`Self::pack`]) is returned as an f32 copy, rounded to its precision.
    ///
    /// # Errors
    /// If the conversion fails.
    pub fn weight(&self) -> Result<Tensor> {
        self.weight.tensor()
    }

    /// Returns the shape of the weight, `(d_out, d_in)`.
    pub fn shape(&self) -> (usize, usize) {
        let checked = self.weight.dims2();
        checked.unwrap_or_else(|_| unreachable!("a matrix, as checked where the layer was made"))
    }

    /// Returns the weight in the layer's own form: dense, quantized or packed.
    #[doc(hidden)]
    pub fn kept_weight(&self) -> &Weight {
        &self.weight
    }

    /// Returns the size of the weight in bytes if it is packed, else 0.
    pub(in crate::layers) fn packed_bytes(&self) -> usize {
        match &self.weight {
            Weight::Packed(Packed(weight)) => weight.bytes(),
            _ => 0,
        }
    }

    /// Returns a layer with only shape and bias, for a weight that is packed together with others.
    pub(crate) fn joined(&self) -> Self {
        let (d_out, d_in) = self.shape();
        Self {
            weight: Weight::Joined(d_out, d_in),
            bias: self.bias.clone(),
            adapter: None,
            unfrozen: None,
        }
    }

    /// Returns a copy of the layer with the adapter folded into the weight. In evaluation it is the same function,
    /// without the adapter's cost. Variables stay as they are, and get their gradients through the copy.
    ///
    /// # Errors
    /// If `Lora::merge` has added the adapter to the weight's variable.
    pub fn merged(&self) -> Result<Self> {
        let Some(adapter) = &self.adapter else {
            return Ok(self.clone());
        };
        let product = adapter.product()?.to_dtype(self.weight.dtype())?;
        let sum = (self.weight()? + product)?;
        Self::from_parts(sum, self.bias.clone())
    }

    /// Returns the dense weight before it was frozen under the adapter, or as it is.
    #[doc(hidden)]
    pub fn unfrozen_weight(&self) -> Option<&Tensor> {
        let unfrozen = self.unfrozen.as_ref();
        unfrozen.map_or(&self.weight, |of| &of.0).dense()
    }

    /// Returns the layer without its adapter, with the weight `sum`. A variable from which the layer was made is set to
    /// it, and the layer reads that variable again.
    #[doc(hidden)]
    pub fn after_merge(&self, role: &str, sum: &Tensor) -> Result<Self> {
        let bias = match &self.unfrozen {
            Some(of) => of.1.clone(),
            None => self.bias.clone(),
        };
        let weight = match self.unfrozen_weight() {
            Some(variable) if variable.is_variable() => {
                store(&Var::from_tensor(variable)?, sum)?;
                self.adapter.iter().for_each(|of| of.set_merged(role));
                variable
            }
            _ => sum,
        };
        Self::from_parts(weight.clone(), bias)
    }

    /// Makes the adapter draw its dropout masks from `source`.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        if let Some(adapter) = &mut self.adapter {
            adapter.dropout.set_source(source.clone());
        }
    }

    /// Returns the adapter's dropout.
    pub(in crate::layers) fn dropout(&self) -> Option<&Dropout> {
        Some(&self.adapter.as_ref()?.dropout)
    }

    /// Computes the output like [`Module::forward`], with the adapter's dropout on. candle's blanket
    /// `ModuleT::forward_t` ignores its flag, so code that is generic over `ModuleT` trains without that dropout.
    pub fn forward_training(&self, x: &Tensor) -> Result<Tensor> {
        Value::through(x, |x| self.apply(x, None, true))
    }

    /// Computes the output and adds it to `residual`.
    pub(in crate::layers) fn apply(
        &self,
        x: &Value,
        residual: Option<&Value>,
        train: bool,
    ) -> Result<Value> {
        let (weight, bias) = (&self.weight, self.bias.as_ref());
        let Some(adapter) = &self.adapter else {
            return x.linear(weight, bias, residual);
        };
        let low_rank = adapter.apply(x, train)?;
        if low_rank.dtype() == x.dtype() {
            let y = x.linear(weight, bias, Some(&low_rank))?;
            return y.added_to(residual);
        }
        let y = x.linear(weight, bias, None)?.to_dtype(low_rank.dtype())?;
        y.add(&low_rank)?.to_dtype(x.dtype())?.added_to(residual)
    }

    /// Returns the parameters that are tensors: a dense weight, the bias and the adapter's factors.
    pub(in crate::layers) fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        let own = [self.weight.dense(), self.bias.as_ref()];
        let adapter = self.adapter().into_iter();
        let low_rank = adapter.flat_map(|adapter| [adapter.a(), adapter.b()]);
        own.into_iter().flatten().chain(low_rank)
    }

    /// # Errors
    /// If the weight has another shape. `of` names the outer layer and `role` this one.
    pub(crate) fn expect_shape(&self, of: &str, role: &str, shape: [usize; 2]) -> Result<()> {
        let found: [usize; 2] = self.shape().into();
        if found != shape {
            bail!("{of}: {role} has shape {found:?}, expected {shape:?}");
        }
        Ok(())
    }
}

impl Module for Linear {
    /// Computes `torch.nn.functional.linear(x, weight, bias)`.
    ///
    /// # Shapes
    /// `[.., d_in]` of rank 1 or more, to `[.., d_out]`.
    ///
    /// # Errors
    /// If the last dimension is not `d_in`, or input and weight differ in dtype.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self.weight {
            // A single product wakes the worker threads itself.
            Weight::Packed(_) => self.apply(&Value::of(x)?, None, false)?.tensor(),
            _ => Value::through(x, |x| self.apply(x, None, false)),
        }
    }
}
