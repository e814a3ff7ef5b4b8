//! LayerNorm and RMSNorm over the last dimension.

use candle_core::{CpuStorage, Result, Shape, Tensor, backend::BackendStorage, bail};

use super::{
    composed,
    linear::selected_isa,
    storage::{check_float, gradient, output, slice, tensor_slice, with_float},
    weighted::{self, Argument, Weighted},
};
use crate::{
    NormConfig, NormKind, NormWeight,
    cpu::{
        Element,
        norm::{Gain, Gradients, Norm, Statistic},
    },
};

const OP: &str = "norm";

/// Normalises over the last dimension.
///
/// LayerNorm: `(x - mean(x)) / √(var(x) + eps) · weight + bias` (Ba et al. 2016,
/// <https://arxiv.org/abs/1607.06450>), equal to
/// `torch.nn.functional.layer_norm(x, (d,), weight, bias, eps)`. RMSNorm:
/// `x / √(mean(x²) + eps) · weight` (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>),
/// equal to `torch.nn.functional.rms_norm(x, (d,), weight, eps)`. With [`NormWeight::OnePlus`] the
/// factor is `1 + weight`.
///
/// f16 and bf16 are computed in f32 and rounded once, except for RMSNorm with a plain weight: there the
/// normalised value is rounded before it is multiplied, as in transformers
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/llama/modeling_llama.py>).
///
/// # Shapes
/// `x` `[.., d_model]`, `weight` and `bias` `[d_model]`; the result has the shape of `x`.
///
/// # Errors
/// If a shape does not fit, if the types differ or are not float, or if the presence of the bias
/// contradicts `config.bias`.
pub fn norm(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    config: &NormConfig,
) -> Result<Tensor> {
    check(x, weight, bias, config)?;
    if !x.device().is_cpu() {
        return composed::norm(x, weight, bias, config);
    }
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    weighted::apply(Normalise(norm_kernel(config)), &x, &weight, bias)
}

fn check(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: &NormConfig) -> Result<()> {
    check_float(OP, x)?;
    let d_model = config.d_model;
    if x.dims().last() != Some(&d_model) {
        bail!(
            "{OP}: the input has shape {:?}; expected [.., {d_model}]",
            x.shape()
        )
    }
    for (name, tensor) in [("weight", Some(weight)), ("bias", bias)] {
        let Some(tensor) = tensor else { continue };
        if tensor.dims() != [d_model] {
            bail!(
                "{OP}: the {name} has shape {:?}; expected [{d_model}]",
                tensor.shape()
            )
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
        (false, Some(_)) => bail!("{OP}: a bias was given, but the configuration has none"),
        _ => Ok(()),
    }
}

/// The kernel of a norm's configuration.
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

struct Normalise(Norm);

impl Weighted for Normalise {
    const NAME: &'static str = OP;

    fn forward(
        &self,
        (x, x_layout): Argument,
        (weight, weight_layout): Argument,
        bias: Option<Argument>,
    ) -> Result<(CpuStorage, Shape)> {
        with_float!(OP, x.dtype(), T => {
            let x = slice::<T>(OP, x, x_layout)?;
            let weight = slice(OP, weight, weight_layout)?;
            let bias = bias.map(|(bias, layout)| slice(OP, bias, layout)).transpose()?;
            let mut y = vec![T::ZERO; x.len()];
            self.0.forward(selected_isa()?, x, weight, bias, &mut y);
            Ok(output(y, x_layout))
        })
    }

    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: Option<&Tensor>,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let (dy, dy_layout) = grad.storage_and_layout();
        let (x_storage, x_layout) = x.storage_and_layout();
        let (weight_storage, weight_layout) = weight.storage_and_layout();
        with_float!(OP, x.dtype(), T => {
            let mut dx = vec![T::ZERO; x.elem_count()];
            let Gradients { dweight, dbias } = self.0.backward::<T>(
                selected_isa()?,
                tensor_slice(OP, &x_storage, x_layout)?,
                tensor_slice(OP, &weight_storage, weight_layout)?,
                tensor_slice(OP, &dy, dy_layout)?,
                &mut dx,
            );
            let (dweight, dbias) = (gradient(dweight, weight)?, gradient(dbias, weight)?);
            Ok([gradient(dx, x)?, dweight, dbias].map(Some))
        })
    }
}
