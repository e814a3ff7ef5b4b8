//! SmolLM3: Llama's blocks, some without rotary embeddings.
//!
//! transformers' `SmolLM3Attention`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/smollm3/modeling_smollm3.py>

use super::llama::{biased_block, decoder, prefix_by_head, uniform};
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("smollm3", config).new_names(prefix_by_head)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let stack = uniform(json, biased_block(json)?)?;
    let n_blocks = stack.blocks.len();
    let key = "no_rope_layers"; // 1 with rotation
    let rotates: Vec<bool> = match json.numbers(&[key])? {
        Some(flags) if flags.len() >= n_blocks => flags.iter().map(|&flag| flag != 0.0).collect(),
        Some(flags) => {
            let reason = format!("lists {} layers, expected {n_blocks}", flags.len());
            return Err(json.error(&[key], reason));
        }
        None => {
            let interval = json.size_or(&["no_rope_layer_interval"], 4)?;
            (1..=n_blocks)
                .map(|i| !i.is_multiple_of(interval))
                .collect()
        }
    };
    let window = json.optional_size(&["sliding_window"])?;
    let may_slide = json.flag(&["use_sliding_window"], false)?;
    let is_sliding = json.sliding_layers(n_blocks, |i| may_slide && !rotates[i])?;
    Ok(stack.with_each_attention(|i, attention| {
        attention.window = window.filter(|_| is_sliding[i]);
        if !rotates[i] {
            attention.position = Position::None;
        }
    }))
}
