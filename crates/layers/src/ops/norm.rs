//! LayerNorm and RMSNorm over the last dimension.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::rows::norm::{Gain, Norm, Statistic};
use candle_core::{Result, Tensor, bail};

use super::numbers::Numbers;
use super::tape::{Reads, Taped, check_float};
use super::value::{Value, on_either};
use crate::config::{NormConfig, NormKind, NormWeight};

const OP: &str = "norm";

/// Normalizes over the last dimension.
///
/// LayerNorm: `(x - mean(x)) / √(var(x) + eps) · weight + bias` (Ba et al. 2016,
/// <https://arxiv.org/abs/1607.06450>), equal to `torch.nn.functional.layer_norm(x, (d,), weight, bias, eps)`.
/// RMSNorm: `x / √(mean(x²) + eps) · weight` (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>), equal to
/// `torch.nn.functional.rms_norm(x, (d,), weight, eps)`. With [`NormWeight::OnePlus`] the factor is `1 + weight`.
///
/// f16 and bf16 are computed in f32 and rounded once, except for RMSNorm with a plain weight: there the normalized
/// value is rounded before the multiplication, as in transformers
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/llama/modeling_llama.py>).
///
/// # Shapes
/// `x` is `[.., d_model]`, `weight` and `bias` are `[d_model]`. The result has `x`'s shape.
///
/// # Errors
/// If a shape does not match, types differ or are not float, or the bias contradicts `config.bias`.
pub fn norm(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    config: &NormConfig,
) -> Result<Tensor> {
    check_float(OP, x)?;
    Value::of(x)?.norm(weight, bias, config)?.tensor()
}

impl Value {
    /// Like [`norm()`].
    pub fn norm(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        config: &NormConfig,
    ) -> Result<Value> {
        check(self, weight, bias, config)?;
        on_either!(self, x => Ok(x.norm(weight, bias, config)?.into()))
    }
}

impl Taped<Cpu> {
    fn norm(&self, weight: &Tensor, bias: Option<&Tensor>, config: &NormConfig) -> Result<Self> {
        let x = self.whole()?;
        let norm = norm_kernel(config);
        let (weight, of_weight) = x.parameter(weight, Reads::Both)?;
        let bias = bias.map(|bias| x.parameter(bias, Reads::Forward));
        let bias = bias.transpose()?;
        let mut y = Numbers::new(x.dtype(), x.elem_count())?;
        {
            let (x_data, w_data) = (x.data.read(), weight.read());
            let bias = bias.as_ref().map(|(bias, _)| bias.read());
            let bias = bias.as_ref().map(|bias| bias.slice());
            norm.forward(
                x.engine(),
                x_data.slice(),
                w_data.slice(),
                bias,
                y.slice_mut(),
            );
        }
        let bias_place = bias.and_then(|(_, place)| place);
        let asks = [x.slot.place, of_weight, bias_place];
        let (data, of_x) = (x.data.clone(), x.slot.clone());
        Ok(x.mapped(y, &asks, move |pass, dy| {
            let mut dx = Numbers::new(dy.dtype(), dy.len())?;
            let mut dweight = Numbers::new(dy.dtype(), of_x.width)?;
            let mut dbias = Numbers::new(dy.dtype(), of_x.width)?;
            let (x, weight) = (data.read(), weight.read());
            let parameter_gradients = [dweight.slice_mut(), dbias.slice_mut()];
            let (x, weight, to) = (x.slice(), weight.slice(), dx.slice_mut());
            norm.backward(pass.engine, x, weight, dy.slice(), to, parameter_gradients);
            pass.add(&of_x, dx)?;
            pass.add_parameter(of_weight, dweight)?;
            pass.add_parameter(bias_place, dbias)
        }))
    }
}

fn check(x: &Value, weight: &Tensor, bias: Option<&Tensor>, config: &NormConfig) -> Result<()> {
    let d_model = config.d_model;
    if x.dims().last() != Some(&d_model) {
        let found = x.dims();
        bail!("{OP}: the input has shape {found:?}; expected [.., {d_model}]");
    }
    for (name, tensor) in [("weight", Some(weight)), ("bias", bias)] {
        let Some(tensor) = tensor else { continue };
        if tensor.dims() != [d_model] {
            let found = tensor.shape();
            bail!("{OP}: the {name} has shape {found:?}; expected [{d_model}]");
        }
        if tensor.dtype() != x.dtype() {
            bail!(
                "{OP}: the {name} is {:?} but the input is {:?}; convert one with to_dtype",
                tensor.dtype(),
                x.dtype()
            )
        }
    }
    match (config.bias, bias) {
        (true, None) => bail!("{OP}: the configuration has a bias, but none was given"),
        (false, Some(_)) => bail!("{OP}: a bias was given, but the configuration has no bias"),
        _ => Ok(()),
    }
}

/// Returns the kernel for a norm configuration.
pub(crate) fn norm_kernel(config: &NormConfig) -> Norm {
    Norm {
        statistic: match config.kind {
            NormKind::LayerNorm => Statistic::Variance,
            NormKind::RmsNorm => Statistic::MeanSquare,
        },
        gain: match (config.kind, config.weight) {
            (NormKind::LayerNorm, NormWeight::Plain) | (_, NormWeight::Absent) => Gain::Weight,
            (NormKind::RmsNorm, NormWeight::Plain) => Gain::WeightAfterRounding,
            (_, NormWeight::OnePlus) => Gain::OnePlusWeight,
        },
        eps: config.eps,
    }
}
