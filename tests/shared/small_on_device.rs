//! The layers and values of `small.rs` on the device under test.

use candle_blocks::{
    Stack, StackConfig,
    candle_core::{DType, Result, Tensor},
    candle_nn::VarBuilder,
};

use crate::{device::device, small};

/// Returns values of unit size, which differ for each `start`.
pub fn numbers(shape: &[usize], start: usize) -> Tensor {
    small::numbers(shape, start).to_device(&device()).unwrap()
}

/// Returns a layer made by `make` from irregular parameters.
pub fn made<L>(make: impl FnOnce(VarBuilder) -> Result<L>) -> L {
    let value = |i, around, dims: &[usize]| numbers(dims, i).affine(0.4, around).unwrap();
    small::made_on(&device(), DType::F32, make, value).0
}

/// Returns a configuration's stack.
pub fn stack(config: &StackConfig) -> Stack {
    made(|vb| Stack::new(config, vb))
}
