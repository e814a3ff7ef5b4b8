//! The elements of a tensor.

use candle_blocks::candle_core::{DType, Device, Tensor};

/// Returns a tensor's elements, for any dtype, device and layout.
pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    let values = tensor.to_device(&Device::Cpu).unwrap();
    let values = values.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
    values.to_vec1().unwrap()
}

/// Returns the bits of a tensor's elements as f64.
pub fn bits(tensor: &Tensor) -> Vec<u64> {
    numbers(tensor).into_iter().map(f64::to_bits).collect()
}
