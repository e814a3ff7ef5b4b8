//! The machine epsilons of floating types.

use candle_core::DType;

/// Returns the machine epsilon of a floating type for layers: the gap between 1 and the next value.
pub(super) fn epsilon(dtype: DType) -> Option<f64> {
    match dtype {
        DType::BF16 => Some(half::bf16::EPSILON.to_f64()),
        DType::F16 => Some(half::f16::EPSILON.to_f64()),
        DType::F32 => Some(f64::from(f32::EPSILON)),
        DType::F64 => Some(f64::EPSILON),
        _ => None,
    }
}
