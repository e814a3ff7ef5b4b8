//! Parameters of a checkpoint.

use candle_blocks::{Checkpoint, Parameters, candle_core::DType};

use crate::device::device;

/// The parameters of a checkpoint's stack, as training gets them.
pub fn trained(checkpoint: &Checkpoint, dtype: DType) -> Parameters {
    let loader = checkpoint.trainable(dtype, &device()).unwrap();
    loader.stack().unwrap();
    loader.parameters()
}
