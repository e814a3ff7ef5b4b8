//! Qwen 2 and 3: Llama's blocks with their own biases or norms, and sliding windows in some layers.
//!
//! transformers' `Qwen2DecoderLayer` and `Qwen3DecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen3/modeling_qwen3.py>

use super::llama::{bias, block, decoder, prefix_by_head, uniform};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let alone = [decoder("qwen2", qwen2), decoder("qwen3", qwen3)];
    alone.map(|table| table.new_names(prefix_by_head)).into()
}

pub(super) fn qwen2(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.with_default("num_key_value_heads", 32);
    let stack = uniform(json, block(json, AttentionBias::new(true, false))?)?;
    with_windows(json, stack, |i, first| i >= first)
}

pub(super) fn qwen3(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.with_default("num_key_value_heads", 32);
    let json = &json.with_default("head_dim", 128);
    let mut block = block(json, bias(json)?)?;
    block.attention.query_key_norm = Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    with_windows(json, uniform(json, block)?, |i, first| i >= first)
}

/// Sets sliding windows, if enabled, in the layers that `layer_types` names. Without it, `default` decides from a layer's
/// index and `max_window_layers`.
pub(super) fn with_windows(
    json: &ConfigJson,
    stack: StackConfig,
    default: fn(usize, usize) -> bool,
) -> Result<StackConfig> {
    if !json.flag(&["use_sliding_window"], false)? {
        if json
            .sliding_layers(stack.blocks.len(), |_| false)?
            .contains(&true)
        {
            let reason = "contains sliding_attention, although use_sliding_window is false";
            return Err(json.error(&["layer_types"], reason));
        }
        return Ok(stack);
    }
    sliding(json, stack, 28, default)
}

/// Sets sliding windows in the layers that `layer_types` names. Without it, in layers from `max_window_layers` on.
pub(super) fn sliding_from(
    json: &ConfigJson,
    stack: StackConfig,
    first: usize,
) -> Result<StackConfig> {
    sliding(json, stack, first, |i, first| i >= first)
}

fn sliding(
    json: &ConfigJson,
    stack: StackConfig,
    max_layers: usize,
    default: fn(usize, usize) -> bool,
) -> Result<StackConfig> {
    let window = json.switchable_size("sliding_window", 4096)?;
    let max_layers = json.size_or(&["max_window_layers"], max_layers)?;
    let is_sliding = json.sliding_layers(stack.blocks.len(), |i| default(i, max_layers))?;
    Ok(stack.with_each(|i, block| {
        block.attention.window = window.filter(|_| is_sliding[i]);
    }))
}
