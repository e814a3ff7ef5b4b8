//! A checkpoint's parameters.

use candle_blocks::{
    Checkpoint, Parameters,
    candle_core::{DType, Device},
};

use crate::device::device;

/// The parameters of a checkpoint's stack, as training gets them; in f64 on the CPU, since not every device has it.
pub fn trained(checkpoint: &Checkpoint, dtype: DType) -> Parameters {
    let device = match dtype {
        DType::F64 => Device::Cpu,
        _ => device(),
    };
    let loader = checkpoint.trainable(dtype, &device).unwrap();
    loader.stack().unwrap();
    loader.parameters()
}
