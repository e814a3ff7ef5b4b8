//! CWM: Llama's blocks with sliding windows in three out of four layers.
//!
//! transformers' `CwmDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/cwm/modeling_cwm.py>

use super::llama::{block, decoder, uniform, with_mlp_bias};
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("cwm", cwm)
}

fn cwm(json: &ConfigJson) -> Result<StackConfig> {
    let usual = json!({"rope_theta": 1e6, "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let json = match json.rotary_section()? {
        Some(_) => json,
        None => &json.with_default("rope_parameters", usual),
    };
    let stack = uniform(
        json,
        with_mlp_bias(json, block(json, AttentionBias::NONE)?)?,
    )?;
    let window = json.switchable_size("sliding_window", 8192)?;
    let is_sliding = json.sliding_layers(stack.blocks.len(), |i| !i.is_multiple_of(4))?;
    Ok(stack
        .with_each_attention(|i, attention| attention.window = window.filter(|_| is_sliding[i])))
}
