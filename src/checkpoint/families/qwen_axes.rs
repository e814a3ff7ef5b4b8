//! The text stacks of Qwen-VL and Qwen-Omni, whose tokens have positions in time, row and column, alone. `text_sides.json` lists
//! the larger models.
//!
//! transformers' `Qwen2VLDecoderLayer` and `Qwen3VLMoeTextDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen3_vl_moe/modeling_qwen3_vl_moe.py>

use super::llama::decoder;
use super::mixtral::{expert_rules, experts_in_out, qwen3_moe, stacked_experts};
use super::prelude::*;
use super::qwen::{qwen2, qwen3};

pub(super) fn families() -> Vec<Family> {
    let moe = decoder("qwen3_vl_moe_text", qwen3_vl_moe)
        .block_rules(stacked_experts("mlp.experts"))
        .block_rules(experts_in_out("mlp.experts"))
        .block_rules(expert_rules()); // of GGUF files
    let omni_moe = decoder("qwen3_omni_moe_text", qwen3_omni_moe).block_rules(expert_rules());
    let all = [
        decoder("qwen2_vl_text", qwen2_vl),
        decoder("qwen2_5_vl_text", qwen2_vl),
        decoder("qwen3_vl_text", qwen3_vl),
        decoder("qwen2_5_omni_text", qwen2_5_omni),
        moe,
        omni_moe,
    ];
    all.map(|table| table.prefixes(&[""])).into()
}

fn qwen2_vl(json: &ConfigJson) -> Result<StackConfig> {
    let stack = qwen2(json)?;
    by_axes(json, stack, AxesOrder::Sections, [16, 24, 24])
}

fn qwen2_5_omni(json: &ConfigJson) -> Result<StackConfig> {
    by_axes(json, qwen2(json)?, AxesOrder::Sections, [16, 24, 24])
}

fn qwen3_vl(json: &ConfigJson) -> Result<StackConfig> {
    let stack = qwen3(json)?;
    by_axes(json, stack, AxesOrder::Interleaved, [24, 20, 20])
}

fn qwen3_vl_moe(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json
        .without("use_sliding_window")
        .with("norm_topk_prob", true);
    by_axes(json, qwen3_moe(json)?, AxesOrder::Interleaved, [24, 20, 20])
}

fn qwen3_omni_moe(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.without("use_sliding_window");
    by_axes(json, qwen3_moe(json)?, AxesOrder::Interleaved, [24, 20, 20])
}

/// Adds rotary embeddings by time, row and column.
pub(super) fn by_axes(
    json: &ConfigJson,
    stack: StackConfig,
    order: AxesOrder,
    default: [usize; 3],
) -> Result<StackConfig> {
    let pairs = json.pairs_of_axes(default)?;
    let axes = RotaryAxes::Tokens(TokenAxes { pairs, order });
    Ok(stack.with_each_attention(|_, attention| {
        if let Position::Rotary(rotary) = &mut attention.position {
            rotary.axes = Some(axes.clone());
        }
    }))
}
