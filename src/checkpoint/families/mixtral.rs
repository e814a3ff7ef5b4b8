//! Mixtral, Qwen 2 MoE and Qwen 3 MoE: Llama's blocks with a mixture of experts.
//!
//! transformers' `MixtralSparseMoeBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/mixtral/modeling_mixtral.py>, and
//! `Qwen2MoeSparseMoeBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen2_moe/modeling_qwen2_moe.py>

use super::llama::{bias, block, decoder, prefix_by_head, uniform};
use super::prelude::*;
use super::qwen::with_windows;

pub(super) fn families() -> Vec<Family> {
    let mixtral = decoder("mixtral", mixtral).block_rules([
        Rule::linear("feed_forward.router", &["block_sparse_moe.gate"]),
        Rule::linear(
            "feed_forward.experts.{e}.gate",
            &["block_sparse_moe.experts.{e}.w1"],
        ),
        Rule::linear(
            "feed_forward.experts.{e}.up",
            &["block_sparse_moe.experts.{e}.w3"],
        ),
        Rule::linear(
            "feed_forward.experts.{e}.down",
            &["block_sparse_moe.experts.{e}.w2"],
        ),
    ]);
    let qwen = |name: &str, config| {
        decoder(name, config)
            .block_rules(expert_rules())
            .block_rules([
                Rule::linear("feed_forward.shared.gate", &["mlp.shared_expert.gate_proj"]),
                Rule::linear("feed_forward.shared.up", &["mlp.shared_expert.up_proj"]),
                Rule::linear("feed_forward.shared.down", &["mlp.shared_expert.down_proj"]),
                Rule::linear("feed_forward.shared_gate", &["mlp.shared_expert_gate"]),
            ])
    };
    vec![
        mixtral,
        qwen("qwen2_moe", qwen2_moe),
        qwen("qwen3_moe", qwen3_moe).new_names(prefix_by_head),
    ]
}

/// The names of a router and its experts since Qwen 2 MoE.
pub(super) fn expert_rules() -> [Rule; 4] {
    let expert = |part: &str| {
        let stem = format!("mlp.experts.{{e}}.{part}_proj");
        Rule::linear(&format!("feed_forward.experts.{{e}}.{part}"), &[&stem])
    };
    let router = Rule::linear("feed_forward.router", &["mlp.gate"]);
    [router, expert("gate"), expert("up"), expert("down")]
}

fn mixtral(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.with_default("num_key_value_heads", 8);
    let mut block = block(json, AttentionBias::NONE)?;
    block.norm.eps = json.number(&["rms_norm_eps"], 1e-5)?;
    let rotary = json.rotary(block.attention.head_dim, 1e6)?;
    block.attention.position = Position::Rotary(rotary);
    block.attention.window = json.optional_size(&["sliding_window"])?;
    block.feed_forward.experts = Some(ExpertsConfig {
        n_experts: json.size(&["num_local_experts", "num_experts"])?,
        top_k: json.size(&["num_experts_per_tok"])?,
        weights: RoutingWeights::Renormalized,
        shared_d_ff: None,
    });
    uniform(json, block)
}

fn qwen2_moe(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.with_default("num_key_value_heads", 16);
    let has_bias = json.flag(&["qkv_bias"], true)?;
    let stack = uniform(json, block(json, AttentionBias::new(has_bias, false))?)?;
    let shared = json.size(&["shared_expert_intermediate_size"])?;
    let stack = with_experts(json, stack, Some(shared))?;
    with_windows(json, stack, |i, last| i.is_multiple_of(2) && i < last)
}

fn qwen3_moe(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.with_default("num_key_value_heads", 4);
    let mut block = block(json, bias(json)?)?;
    block.attention.query_key_norm = Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    if json.flag(&["use_sliding_window"], false)? {
        block.attention.window = json.switchable_size("sliding_window", 4096)?; // in all layers
    }
    with_experts(json, uniform(json, block)?, None)
}

/// Experts in every `decoder_sparse_step`-th layer but those in `mlp_only_layers`.
pub(super) fn with_experts(
    json: &ConfigJson,
    stack: StackConfig,
    shared_d_ff: Option<usize>,
) -> Result<StackConfig> {
    let n_experts = json.size(&["num_experts", "num_local_experts"])?;
    let experts = ExpertsConfig {
        n_experts,
        top_k: json.size(&["num_experts_per_tok"])?,
        weights: match json.flag(&["norm_topk_prob"], false)? {
            true => RoutingWeights::Renormalized,
            false => RoutingWeights::Softmax,
        },
        shared_d_ff,
    };
    let d_ff = json.size(&["moe_intermediate_size"])?;
    let step = json.size_or(&["decoder_sparse_step"], 1)?.max(1);
    let dense = json.numbers(&["mlp_only_layers"])?.unwrap_or_default();
    Ok(stack.with_each(|i, block| {
        if n_experts > 0 && (i + 1).is_multiple_of(step) && !dense.contains(&(i as f64)) {
            block.feed_forward.d_ff = d_ff;
            block.feed_forward.experts = Some(experts);
        }
    }))
}
