//! OLMo 1, 2 and 3: Llama's names. OLMo 1 has norms without a weight; OLMo 2 and 3 have norms on the sublayers' outputs, and
//! OLMo 3 sliding windows. OLMoE has OLMo 2's attention with norms before the sublayers, and experts. FlexOlmo is OLMo 2
//! with experts.
//!
//! transformers' `OlmoDecoderLayer`, `Olmo3DecoderLayer`, `OlmoeDecoderLayer` and `FlexOlmoDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/olmo3/modeling_olmo3.py>

use super::gemma::global_rotary;
use super::llama::{bias, block, decoder, uniform};
use super::mixtral::{expert_rules, with_experts};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    vec![
        decoder("olmo", olmo),
        norms_after("olmo2", olmo2),
        norms_after("olmo3", olmo3),
        decoder("olmoe", olmoe)
            .block_rules(expert_rules())
            .renamed("moe_intermediate_size", "intermediate_size"),
        norms_after("flex_olmo", flex_olmo)
            .class_sizes(&["num_experts", "num_experts_per_tok"])
            .block_rules(expert_rules())
            .renamed("moe_intermediate_size", "intermediate_size"),
    ]
}

/// Llama's table with norms on the sublayers' outputs.
pub(super) fn norms_after(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    let mut table = decoder(name, config);
    let in_front = |rule: &Rule| rule.role == "feed_forward_norm"; // another norm has this name here
    table.block_rules.retain(|rule| !in_front(rule));
    table.block_rules([
        Rule::norm("attention_output_norm", &["post_attention_layernorm"]),
        Rule::norm("feed_forward_output_norm", &["post_feedforward_layernorm"]),
    ])
}

fn olmo(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, bias(json)?)?;
    block.norm = NormConfig::layer_norm(block.d_model(), 1e-5)
        .with_bias(false)
        .with_weight(NormWeight::Absent);
    block.attention_mut()?.clip = json.optional_number(&["clip_qkv"])?;
    uniform(json, block)
}

fn olmo2(json: &ConfigJson) -> Result<StackConfig> {
    uniform(
        json,
        normed_outputs(json, bias(json)?, QueryKeyNormSpan::Whole)?,
    )
}

fn olmo3(json: &ConfigJson) -> Result<StackConfig> {
    let stack = olmo2(json)?;
    let head_dim = stack.blocks[0].attention()?.head_dim;
    // If there are `rope_parameters`, transformers uses a separate base for global layers only.
    let local = json.rotary_of_type("sliding_attention", "", head_dim, 5e5)?;
    let global = global_rotary(json, head_dim, 5e5)?;
    let window = json.switchable_size("sliding_window", 4096)?;
    let is_sliding = json.sliding_layers(stack.blocks.len(), |i| !(i + 1).is_multiple_of(4))?;
    Ok(stack.with_each_attention(|i, attention| {
        attention.window = window.filter(|_| is_sliding[i]);
        let rotary = if is_sliding[i] { &local } else { &global };
        attention.position = Position::Rotary(rotary.clone());
    }))
}

fn olmoe(json: &ConfigJson) -> Result<StackConfig> {
    json.only("clip_qkv", &[Value::Null])?; // it would clip after the norms
    let mut block = block(json, bias(json)?)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Whole));
    with_experts(json, uniform(json, block)?, None)
}

fn flex_olmo(json: &ConfigJson) -> Result<StackConfig> {
    with_experts(json, olmo2(json)?, None)
}

/// Returns the block with norms on its sublayers' outputs.
pub(super) fn normed_outputs(
    json: &ConfigJson,
    bias: AttentionBias,
    span: QueryKeyNormSpan,
) -> Result<BlockConfig> {
    let mut block = block(json, bias)?;
    block.attention_placement = NormPlacement::Output;
    block.feed_forward_placement = NormPlacement::Output;
    block.attention_mut()?.query_key_norm = Some(QueryKeyNorm::new(block.norm, span));
    Ok(block)
}
