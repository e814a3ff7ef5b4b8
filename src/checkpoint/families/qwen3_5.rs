//! The text of Qwen 3.5, with experts and without, alone: Qwen3-Next's layers with other fused tensors, and positions in time,
//! row and column. `text_sides.json` lists the models with images.
//!
//! transformers' `Qwen3_5DecoderLayer` and `Qwen3_5MoeDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen3_5_moe/modeling_qwen3_5_moe.py>

use super::gated_delta::{projections, with_mixers};
use super::llama::uniform;
use super::prelude::*;
use super::qwen_axes::by_axes;
use super::qwen3_next::{block, sparse, table, with_expert_rules};

pub(super) fn families() -> Vec<Family> {
    let all = [
        table("qwen3_5_text", qwen3_5),
        with_expert_rules(table("qwen3_5_moe_text", qwen3_5_moe)),
    ];
    all.map(|table| {
        table
            .prefixes(&["model.", "model.language_model.", ""])
            .block_rules(projections())
    })
    .into()
}

fn qwen3_5(json: &ConfigJson) -> Result<StackConfig> {
    let stack = uniform(json, block(json)?)?;
    let stack = with_mixers(json, stack)?;
    by_axes(json, stack, AxesOrder::Interleaved, [11, 11, 10])
}

fn qwen3_5_moe(json: &ConfigJson) -> Result<StackConfig> {
    // The class has experts in every layer, normalizes their weights, and has no other width.
    let width = json.size(&["moe_intermediate_size"])?;
    let json = &json
        .without("decoder_sparse_step")
        .without("mlp_only_layers")
        .with("norm_topk_prob", true)
        .with("intermediate_size", width);
    sparse(json, qwen3_5(json)?)
}
