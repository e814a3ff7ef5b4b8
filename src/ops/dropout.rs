//! Inverted dropout with a given mask.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, bail};

use super::{
    composed,
    storage::{Float, check_float, cotangent, gradient, output, slice, tensor_slice, with_float},
};
use crate::cpu::{Element, Real, dropout as kernel};

const OP: &str = "dropout";

/// Divides kept elements by `1 - p`, and sets the others to 0.
///
/// `x / (1 - p)` where `keep` is not 0, else 0; the gradient likewise (Srivastava et al. 2014,
/// <https://jmlr.org/papers/v15/srivastava14a.html>). It is a true division, so that kept values have the bits
/// of NumPy's `x * mask / (1 - p)`. Dropped elements are 0 even where `x` is not finite.
///
/// # Shapes
/// `x` and `keep` (u8, 1 = keep) of one shape, any rank; the result has it too.
///
/// # Errors
/// If the shapes differ, `x` is not of a float type, `keep` is not u8, or not `0 <= p < 1`.
pub fn dropout(x: &Tensor, keep: &Tensor, p: f64) -> Result<Tensor> {
    check_float(OP, x)?;
    if keep.dtype() != DType::U8 {
        bail!(
            "{OP}: the mask is {:?}; expected U8 with 1 for what is kept",
            keep.dtype()
        )
    }
    if keep.dims() != x.dims() {
        bail!(
            "{OP}: the mask has shape {:?}; expected {:?}",
            keep.shape(),
            x.shape()
        )
    }
    if !(0.0..1.0).contains(&p) {
        bail!("{OP}: p is {p}; expected 0 <= p < 1")
    }
    let divisor = 1.0 - p;
    if x.device().is_cpu() {
        x.contiguous()?
            .apply_op2(&keep.contiguous()?, Dropout { divisor })
    } else {
        composed::dropout(x, keep, divisor)
    }
}

struct Dropout {
    divisor: f64,
}

impl Dropout {
    fn apply<T: Float>(&self, x: &[T], keep: &[u8]) -> Vec<T> {
        let mut y = vec![T::ZERO; x.len()];
        kernel::apply(x, keep, <T as Element>::Acc::of(self.divisor), &mut y);
        y
    }
}

impl CustomOp2 for Dropout {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        keep: &CpuStorage,
        keep_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let keep = slice(OP, keep, keep_layout)?;
        with_float!(OP, x.dtype(), T => {
            Ok(output(self.apply::<T>(slice(OP, x, x_layout)?, keep), x_layout))
        })
    }

    fn bwd(
        &self,
        x: &Tensor,
        keep: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let grad = cotangent(OP, grad)?;
        let (dy, dy_layout) = grad.storage_and_layout();
        let (keep_storage, keep_layout) = keep.storage_and_layout();
        let keep = tensor_slice(OP, &keep_storage, keep_layout)?;
        with_float!(OP, x.dtype(), T => {
            let dx = self.apply::<T>(tensor_slice(OP, &dy, dy_layout)?, keep);
            // candle asks for no gradient of the mask, whose type is an integer.
            Ok((Some(gradient(dx, x)?), None))
        })
    }
}
