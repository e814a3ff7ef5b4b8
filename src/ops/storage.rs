//! Conversions between candle's tensors and the kernels' slices.

use candle_core::{
    CpuStorage, DType, Device, Layout, Result, Shape, Storage, Tensor, WithDType, bail,
};

use crate::cpu::{activation::Computed, norm::Rows};

/// An element type that candle stores and the kernels compute with.
pub trait Float: WithDType + Rows<Acc: Computed> {}

impl<T: WithDType + Rows<Acc: Computed>> Float for T {}

/// Runs `$body` with `$T` the Rust type of a float dtype.
macro_rules! with_float {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $T = f64;
                $body
            }
            candle_core::DType::F16 => {
                type $T = half::f16;
                $body
            }
            candle_core::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            other => Err($crate::ops::storage::not_a_float($op, other)),
        }
    };
}
pub(super) use with_float;

/// The elements of a contiguous tensor in a CPU storage.
pub fn slice<'a, T: WithDType>(
    op: &'static str,
    storage: &'a CpuStorage,
    layout: &Layout,
) -> Result<&'a [T]> {
    match layout.contiguous_offsets() {
        // A view without elements may begin behind the last one.
        Some((start, end)) if start == end => Ok(&[]),
        Some((start, end)) => Ok(&storage.as_slice::<T>()?[start..end]),
        None => Err(candle_core::Error::RequiresContiguous { op }.bt()),
    }
}

/// As [`slice()`], for the storage of a tensor.
pub fn tensor_slice<'a, T: WithDType>(
    op: &'static str,
    storage: &'a Storage,
    layout: &Layout,
) -> Result<&'a [T]> {
    match storage {
        Storage::Cpu(storage) => slice(op, storage, layout),
        _ => bail!("{op}: expected a tensor on the CPU"),
    }
}

/// Values in the shape of `layout`, as a forward pass returns them.
pub fn output<T: WithDType>(values: Vec<T>, layout: &Layout) -> (CpuStorage, Shape) {
    (T::to_cpu_storage_owned(values), layout.shape().clone())
}

/// A gradient as a tensor in the shape of the tensor that it belongs to.
pub fn gradient<T: WithDType>(values: Vec<T>, of: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(values, of.shape(), &Device::Cpu)
}

/// The cotangent `grad`, made contiguous.
///
/// # Errors
/// If it carries a graph of its own: the gradients made from it are constants, so that a second
/// derivative would come out silently wrong.
pub fn cotangent(op: &'static str, grad: &Tensor) -> Result<Tensor> {
    if grad.track_op() {
        bail!("{op}: second derivatives are not supported; unset CANDLE_GRAD_DO_NOT_DETACH")
    }
    grad.contiguous()
}

/// Checks that the type of a tensor is a float.
pub fn check_float(op: &'static str, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => Ok(()),
        other => Err(not_a_float(op, other)),
    }
}

pub fn not_a_float(op: &'static str, dtype: DType) -> candle_core::Error {
    candle_core::Error::Msg(format!(
        "{op}: the input is {dtype:?}; expected F32, F64, F16 or BF16, convert it with to_dtype"
    ))
    .bt()
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;

    #[test]
    fn a_cotangent_with_a_graph_is_an_error_and_not_a_wrong_second_derivative() {
        let var = Var::new(&[1f32, 2.0], &Device::Cpu).unwrap();
        let tracked = var.sqr().unwrap();
        let message = cotangent("norm", &tracked).unwrap_err().to_string();
        assert!(message.contains("second derivatives"), "{message}");
        assert!(cotangent("norm", &tracked.detach()).is_ok());
    }
}
