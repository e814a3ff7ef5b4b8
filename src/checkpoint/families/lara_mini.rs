//! Lara Mini: gated delta rules in most layers, attention with Qwen 3's norms in the others, rotary embeddings only where it has
//! a sliding window, and experts with a shared expert in every layer.
//!
//! transformers' `LaraMiniDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/models/lara_mini/modeling_lara_mini.py>

use super::gated_delta::{delta, initialization, mixer_rules};
use super::layer_types::{FULL, LINEAR, SLIDING};
use super::llama::{bias, block, decoder, uniform};
use super::mixtral::{stacked_experts, with_experts};
use super::prelude::*;

pub(super) fn family() -> Family {
    use MixerPart::{Decay, Gate, Key, Query, Value, Write};
    let fused = |(part, projection)| {
        let weight = ["linear_attn.in_proj.weight"];
        let rule = Rule::named(&format!("attention.delta.{part}"), &weight, &[]);
        rule.part(Part::Mixer(
            MixerLayout::QueryKeyValueGateWriteDecay,
            projection,
        ))
    };
    let parts = [
        ("query", Query),
        ("key", Key),
        ("value", Value),
        ("gate", Gate),
        ("write", Write),
        ("decay", Decay),
    ];
    decoder("lara_mini", lara_mini)
        .block_rules(mixer_rules("linear_attn.out_norm", "linear_attn.out_proj"))
        .block_rules(parts.map(fused))
        .block_rules([Rule::linear("feed_forward.router", &["mlp.gate"])])
        .block_rules(stacked_experts("mlp.experts"))
        .block_rules(gated("feed_forward.shared", "mlp.shared_expert"))
        .initialization(initialization)
}

fn lara_mini(json: &ConfigJson) -> Result<StackConfig> {
    // The class has experts in every layer, and no other width.
    let width = json.size(&["moe_intermediate_size"])?;
    let json = &json
        .without("decoder_sparse_step")
        .without("mlp_only_layers")
        .with_default("norm_topk_prob", true)
        .with("intermediate_size", width);
    let mut block = block(json, bias(json)?)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    let delta = delta(json, block.d_model())?;
    let window = json.size_or(&["sliding_window"], 512)?;
    let stack = uniform(json, block)?;
    let kind = |i: usize| [LINEAR, SLIDING, LINEAR, FULL, SLIDING][i % 5];
    let kinds = json.layer_types(stack.blocks.len(), &[FULL, LINEAR, SLIDING], kind)?;
    let stack = stack.with_each_attention(|i, attention| match kinds[i] {
        SLIDING => attention.window = Some(window),
        _ => attention.position = Position::None,
    });
    let stack = stack.with_each(|i, block| {
        if kinds[i] == LINEAR {
            block.mixer = delta.into();
        }
    });
    let shared = SharedExpertConfig::new(json.size(&["shared_expert_intermediate_size"])?, false);
    with_experts(json, stack, Some(shared))
}
