//! Qwen3-Next: gated delta rules in most layers, attention with a gate on its result in the others, norms that multiply by
//! `1 + w`, and experts.
//!
//! transformers' `Qwen3NextDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen3_next/modeling_qwen3_next.py>

use super::gated_delta::{initialization, mixer_rules, projections, with_mixers};
use super::llama::{decoder, uniform, unrotated_block};
use super::mixtral::{expert_rules, stacked_experts, with_experts};
use super::prelude::*;

pub(super) fn family() -> Family {
    use MixerPart::{Decay, Gate, Key, Query, Value, Write};
    let fused = |(part, name, layout, projection)| {
        let stem = format!("linear_attn.{name}.weight");
        let rule = Rule::named(&format!("attention.delta.{part}"), &[&stem], &[]);
        rule.part(Part::Mixer(layout, projection))
    };
    let (of_heads, of_steps) = ("in_proj_qkvz", "in_proj_ba");
    let (heads, steps) = (
        MixerLayout::QueryKeyValueGateByHead,
        MixerLayout::WriteDecayByHead,
    );
    let by_head = [
        ("query", of_heads, heads, Query),
        ("key", of_heads, heads, Key),
        ("value", of_heads, heads, Value),
        ("gate", of_heads, heads, Gate),
        ("write", of_steps, steps, Write),
        ("decay", of_steps, steps, Decay),
    ];
    with_expert_rules(table("qwen3_next", qwen3_next))
        .block_rules(by_head.map(fused))
        .block_rules(projections()) // of GGUF files
}

/// The table for attention whose query projection also holds the gate, and for mixers without their projections.
pub(super) fn table(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    let query = |role: &str, half| {
        let rule = Rule::linear(role, &["self_attn.q_proj"]);
        rule.part(Part::HalfOfHeads(half))
    };
    decoder(name, config)
        .replace_block_rules([
            query("attention.query", GateHalf::First),
            query("attention.gate", GateHalf::Second),
        ])
        .block_rules(mixer_rules("linear_attn.norm", "linear_attn.out_proj"))
        .initialization(initialization)
}

/// Adds the rules for experts, one by one or stacked, and for the shared expert.
pub(super) fn with_expert_rules(table: Family) -> Family {
    table
        .block_rules(expert_rules())
        .block_rules(stacked_experts("mlp.experts"))
        .block_rules(gated("feed_forward.shared", "mlp.shared_expert"))
        .block_rules([Rule::linear(
            "feed_forward.shared_gate",
            &["mlp.shared_expert_gate"],
        )])
        .class_sizes(&[
            "num_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
        ])
}

fn qwen3_next(json: &ConfigJson) -> Result<StackConfig> {
    let stack = with_mixers(json, uniform(json, block(json)?)?)?;
    sparse(&json.with_default("norm_topk_prob", true), stack)
}

/// Places experts with a shared expert.
pub(super) fn sparse(json: &ConfigJson, stack: StackConfig) -> Result<StackConfig> {
    let shared = SharedExpertConfig {
        d_ff: json.size(&["shared_expert_intermediate_size"])?,
        gate: true,
    };
    with_experts(json, stack, Some(shared))
}

/// Returns the block of layers with attention.
pub(super) fn block(json: &ConfigJson) -> Result<BlockConfig> {
    json.only("attention_bias", &[json!(false)])?; // a gate has no bias in this crate
    let json = &json.with_default("head_dim", 256);
    let mut block = unrotated_block(json, AttentionBias::NONE)?;
    block.norm = block.norm.with_weight(NormWeight::OnePlus);
    let rotary = json.partial_rotary(block.attention()?.head_dim, 0.25, 10000.0)?;
    let norm = QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head);
    let gate = OutputGate::new(Activation::Sigmoid, OutputGateSpan::Channel);
    let attention = block.attention_mut()?;
    attention.position = Position::Rotary(rotary);
    attention.query_key_norm = Some(norm);
    attention.output_gate = Some(gate);
    Ok(block)
}
