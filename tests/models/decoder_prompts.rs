//! The prompts in the fixtures of decoders.

use candle_blocks::candle_core::{Device, safetensors};
use candle_blocks::generate::prompts;

use crate::weights::weights;

/// Returns the prompts that a checkpoint's fixture continues, if it is of a decoder alone.
pub fn decoder_prompts(name: &str) -> Option<Vec<Vec<u32>>> {
    let path = weights(name).join("whole.safetensors");
    let tensors = safetensors::load(path, &Device::Cpu).unwrap();
    let has = |name: &str| tensors.contains_key(name);
    if !has("tokens") || has("decoder_input_ids") || has("encoder_hidden_states") {
        return None;
    }
    prompts(tensors.get("input_ids")?, tensors.get("attention_mask")).ok()
}
