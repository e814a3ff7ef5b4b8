//! LFM3: LFM2's layers with norms after each sublayer, a gate on each head's result, and attention with a sliding window.
//!
//! transformers' `Lfm3DecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/lfm3/modeling_lfm3.py>

use super::layer_types::FULL;
use super::lfm2::{CONVOLUTION, table, with_convolutions};
use super::llama::{bias, uniform, unrotated_block};
use super::prelude::*;

const SLIDING: &str = "sliding_attention";

pub(super) fn family() -> Family {
    table("lfm3", lfm3)
        .replace_block_rules([
            Rule::linear("attention.output", &["self_attn.o_proj"]),
            Rule::norm("attention.query_norm", &["self_attn.q_norm"]),
            Rule::norm("attention.key_norm", &["self_attn.k_norm"]),
        ])
        .block_rules([
            Rule::linear(
                "attention.gate",
                &["self_attn.gate_proj", "self_attn.g_proj"],
            ),
            Rule::norm("attention_output_norm", &["post_operator_norm"]),
            Rule::norm("feed_forward_output_norm", &["post_ffn_norm"]),
        ])
}

fn lfm3(json: &ConfigJson) -> Result<StackConfig> {
    let rotations = json!({
        SLIDING: { "rope_type": "default", "rope_theta": 1e4 },
        FULL: { "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5 },
    });
    let json = &match json.is_null("rope_parameters") {
        true => json.with("rope_parameters", rotations),
        false => json.with_default("rope_parameters", rotations),
    };
    // The class has no other activation.
    let json = json.without("hidden_act").without("hidden_activation");
    let json = &json.with_default("head_dim", 128);
    let mut block = unrotated_block(json, bias(json)?)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    if json.flag(&["use_attention_gate"], true)? {
        let gate = OutputGate::new(Activation::Sigmoid, OutputGateSpan::Head);
        block.attention_mut()?.output_gate = Some(gate);
    }
    if json.flag(&["use_sandwich_norm"], true)? {
        block = sandwich_block(block);
    }
    let mut stack = uniform(json, block)?;
    let kinds = json.layer_types(
        stack.blocks.len(),
        &[FULL, SLIDING, CONVOLUTION],
        |i| match i % 4 {
            2 => FULL,
            0 if i > 0 => SLIDING,
            _ => CONVOLUTION,
        },
    )?;
    let window = json.switchable_size("sliding_window", 256)?;
    for (block, &kind) in stack.blocks.iter_mut().zip(&kinds) {
        let attention = block.attention_mut()?;
        if kind != CONVOLUTION {
            let rotary = json.rotary_of_type(kind, "rope_theta", attention.head_dim, 1e4)?;
            attention.position = Position::Rotary(rotary);
            attention.window = window.filter(|_| kind == SLIDING);
        }
    }
    with_convolutions(json, stack, &kinds)
}
