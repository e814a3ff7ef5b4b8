//! Images as bytes, and transformers' results for them: `weights/reference/images.safetensors`.

use std::{collections::HashMap, fs};

use candle_blocks::candle_core::{Device, Tensor};

use crate::weights::weights;

/// Returns the tensors, and each case's `preprocessor_config.json` by name.
pub fn images() -> (HashMap<String, Tensor>, HashMap<String, String>) {
    let bytes = fs::read(weights("reference/images.safetensors")).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let tensors = candle_blocks::candle_core::safetensors::load_buffer(&bytes, &Device::Cpu);
    (tensors.unwrap(), header.metadata().clone().unwrap())
}
