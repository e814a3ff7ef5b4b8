//! Qwen 2 and 3: Llama's blocks with their own biases or norms, and sliding windows in some layers. Also the text stack of
//! Qwen-VL, alone or in a file with the vision stack, whose positions are time, row and column.
//!
//! transformers' `Qwen2DecoderLayer` and `Qwen3DecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen3/modeling_qwen3.py>

use super::llama::{bias, block, decoder, prefix_by_head, uniform};
use super::prelude::*;
use super::text_side::beside_images;

/// The prefix of the text stack in files of a class without a head.
const BARE: &str = "language_model.";

pub(super) fn families() -> Vec<Family> {
    let alone = [decoder("qwen2", qwen2), decoder("qwen3", qwen3)];
    let alone = alone.map(|table| table.new_names(prefix_by_head));
    let sides = [
        decoder("qwen2_vl", qwen2_vl).prefixes(&["model.", "model.language_model.", BARE, ""]),
        decoder("qwen2_5_vl", qwen2_vl).prefixes(&["model.", "model.language_model.", BARE, ""]),
        decoder("qwen3_vl", qwen3_vl).prefixes(&["model.language_model.", BARE, ""]),
    ];
    let sides = sides.map(beside_images);
    // Text stack only, as the classes without a head save it.
    let texts = [
        decoder("qwen2_vl_text", qwen2_vl),
        decoder("qwen2_5_vl_text", qwen2_vl),
        decoder("qwen3_vl_text", qwen3_vl),
    ];
    let texts = texts.map(|table| table.prefixes(&[""]));
    alone.into_iter().chain(sides).chain(texts).collect()
}

pub(super) fn qwen2(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.with_default("num_key_value_heads", 32);
    let stack = uniform(json, block(json, AttentionBias::new(true, false))?)?;
    with_windows(json, stack, |i, first| i >= first)
}

fn qwen3(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.with_default("num_key_value_heads", 32);
    let json = &json.with_default("head_dim", 128);
    let mut block = block(json, bias(json)?)?;
    block.attention.query_key_norm = Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    with_windows(json, uniform(json, block)?, |i, first| i >= first)
}

fn qwen2_vl(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.with_default("num_key_value_heads", 8);
    let json = &json.with_default("rms_norm_eps", 1e-5);
    let json = &json.with_default("rope_theta", 1e6);
    let stack = qwen2(&json.with_default("max_window_layers", 80))?;
    by_axes(json, stack, AxesOrder::Sections, [16, 24, 24])
}

fn qwen3_vl(json: &ConfigJson) -> Result<StackConfig> {
    let stack = qwen3(&json.with_default("rope_theta", 5e5))?;
    by_axes(json, stack, AxesOrder::Interleaved, [24, 20, 20])
}

/// Adds rotary embeddings by time, row and column.
fn by_axes(
    json: &ConfigJson,
    stack: StackConfig,
    order: AxesOrder,
    default: [usize; 3],
) -> Result<StackConfig> {
    let pairs = json.pairs_of_axes(default)?;
    let axes = RotaryAxes::Tokens(TokenAxes { pairs, order });
    Ok(stack.with_each(|_, block| {
        if let Position::Rotary(rotary) = &mut block.attention.position {
            rotary.axes = Some(axes.clone());
        }
    }))
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
