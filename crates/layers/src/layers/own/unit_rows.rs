//! Baichuan 2's output layer, whose rows have the length 1.
//!
//! `NormHead`: <https://huggingface.co/baichuan-inc/Baichuan2-7B-Base/blob/main/modeling_baichuan.py>

use candle_core::{D, DType, Result, Tensor};

use crate::layers::Linear;

/// The least length, as in `torch.nn.functional.normalize`.
const LEAST: f64 = 1e-12;

/// Returns each row's Euclidean length in the layer's weight, `[d_out]`.
///
/// # Errors
/// If candle fails.
pub(crate) fn lengths(linear: &Linear) -> Result<Tensor> {
    let weight = linear.weight()?;
    let dtype = match weight.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let squares = weight.to_dtype(dtype)?.sqr()?.sum(D::Minus1)?;
    squares.sqrt()?.maximum(LEAST)
}
