//! `x + bias`, the bias the same for every row.

use candle_core::{
    CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, backend::BackendStorage, bail,
};

use super::storage::{Float, cotangent, gradient, output, slice, tensor_slice, with_float};
use crate::cpu::bias as kernel;

const OP: &str = "add-bias";

/// Adds `bias` to every row of `x`: candle's `x.broadcast_add(bias)`, whose gradient of the bias sums
/// long columns in f64 (f32 for half types) rather than in the type itself.
///
/// # Shapes
/// `[.., d]` and `[d]` to `[.., d]`.
///
/// # Errors
/// If the last dimensions or the types differ.
pub fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let width = x.dims().last().copied().unwrap_or(1);
    if bias.dims() != [width] || bias.dtype() != x.dtype() {
        bail!(
            "{OP}: bias is {:?} {:?}, expected {:?} [{width}] for an input of {:?}",
            bias.dtype(),
            bias.dims(),
            x.dtype(),
            x.dims()
        );
    }
    if !x.device().is_cpu() {
        return x.broadcast_add(bias);
    }
    x.contiguous()?.apply_op2(&bias.contiguous()?, AddBias)
}

struct AddBias;

impl AddBias {
    fn forward<T: Float>(x: &[T], bias: &[T]) -> Vec<T> {
        let mut y = vec![T::ZERO; x.len()];
        kernel::add(x, bias, &mut y);
        y
    }
}

impl CustomOp2 for AddBias {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        with_float!(OP, x.dtype(), T => {
            let y = Self::forward::<T>(slice(OP, x, x_layout)?, slice(OP, bias, bias_layout)?);
            Ok(output(y, x_layout))
        })
    }

    fn bwd(
        &self,
        _: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let grad = cotangent(OP, grad)?;
        let dbias = {
            let (storage, layout) = grad.storage_and_layout();
            with_float!(OP, bias.dtype(), T => {
                let dy = tensor_slice::<T>(OP, &storage, layout)?;
                gradient(kernel::column_sums(dy, bias.elem_count()), bias)
            })?
        };
        Ok((Some(grad), Some(dbias)))
    }
}
