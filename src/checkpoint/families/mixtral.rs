//! Mixtral, Qwen 2 MoE and Qwen 3 MoE: Llama's blocks with a mixture of experts.
//!
//! transformers' `MixtralSparseMoeBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/mixtral/modeling_mixtral.py>, and
//! `Qwen2MoeSparseMoeBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen2_moe/modeling_qwen2_moe.py>

use super::llama::{bias, block, decoder, prefix_by_head, uniform};
use super::prelude::*;
use super::qwen::with_windows;

pub(super) fn families() -> Vec<Family> {
    let qwen = |name: &str, config| {
        decoder(name, config)
            .block_rules(expert_rules())
            .block_rules(gated("feed_forward.shared", "mlp.shared_expert"))
            .block_rules([Rule::linear(
                "feed_forward.shared_gate",
                &["mlp.shared_expert_gate"],
            )])
    };
    vec![
        decoder("mixtral", mixtral).block_rules(mixtral_rules()),
        qwen("qwen2_moe", qwen2_moe),
        qwen("qwen3_moe", qwen3_moe).new_names(prefix_by_head),
    ]
}

/// Rules for a router and its experts, with Mixtral's names.
pub(super) fn mixtral_rules() -> [Rule; 4] {
    let expert = |(part, name): (&str, &str)| {
        let stem = format!("block_sparse_moe.experts.{{e}}.{name}");
        Rule::linear(&format!("feed_forward.experts.{{e}}.{part}"), &[&stem])
    };
    let router = Rule::linear("feed_forward.router", &["block_sparse_moe.gate"]);
    let [gate, up, down] = [("gate", "w1"), ("up", "w3"), ("down", "w2")].map(expert);
    [router, gate, up, down]
}

/// Rules for a router and its experts, with the names since Qwen 2 MoE.
pub(super) fn expert_rules() -> [Rule; 4] {
    let router = Rule::linear("feed_forward.router", &["mlp.gate"]);
    let [gate, up, down] = gated("feed_forward.experts.{e}", "mlp.experts.{e}");
    [router, gate, up, down]
}

/// Rules for stacked experts under `stem`, with gate and up fused.
pub(super) fn stacked_experts(stem: &str) -> [Rule; 3] {
    let expert = |part: &str, name: &str, of: Part| {
        let role = format!("feed_forward.experts.{{e}}.{part}");
        let rule = Rule::named(&role, &[&format!("{stem}.{name}")], &[]);
        rule.stacked().part(of)
    };
    [
        expert("gate", "gate_up_proj", Part::Half(GateHalf::First)),
        expert("up", "gate_up_proj", Part::Half(GateHalf::Second)),
        expert("down", "down_proj", Part::Whole),
    ]
}

/// Returns [`stacked_experts`] stored as `[d_in, d_out]`.
pub(super) fn experts_in_out(stem: &str) -> [Rule; 3] {
    stacked_experts(stem).map(Rule::in_out)
}

pub(super) fn mixtral(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, AttentionBias::NONE)?;
    block.norm.eps = json.number(&["rms_norm_eps"], 1e-5)?;
    let rotary = json.rotary(block.attention()?.head_dim, 1e6)?;
    block.attention_mut()?.position = Position::Rotary(rotary);
    block.attention_mut()?.window = json.optional_size(&["sliding_window"])?;
    let routing = RoutingConfig::renormalized(json.size(&["num_experts_per_tok"])?);
    let n_experts = json.size(&["num_local_experts", "num_experts"])?;
    block.feed_forward.experts = Some(ExpertsConfig::new(n_experts, routing));
    uniform(json, block)
}

fn qwen2_moe(json: &ConfigJson) -> Result<StackConfig> {
    let has_bias = json.flag(&["qkv_bias"], true)?;
    let stack = uniform(json, block(json, AttentionBias::new(has_bias, false))?)?;
    let shared = SharedExpertConfig {
        d_ff: json.size(&["shared_expert_intermediate_size"])?,
        gate: true,
    };
    let stack = with_experts(json, stack, Some(shared))?;
    with_windows(json, stack, |i, last| i.is_multiple_of(2) && i < last)
}

pub(super) fn qwen3_moe(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, bias(json)?)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    if json.flag(&["use_sliding_window"], false)? {
        block.attention_mut()?.window = json.switchable_size("sliding_window", 4096)?; // in all layers
    }
    with_experts(json, uniform(json, block)?, None)
}

/// Places experts in every `decoder_sparse_step`-th layer except those in `mlp_only_layers`.
pub(super) fn with_experts(
    json: &ConfigJson,
    stack: StackConfig,
    shared: Option<SharedExpertConfig>,
) -> Result<StackConfig> {
    let n_experts = json.size(&["num_experts", "num_local_experts"])?;
    let routing = RoutingConfig {
        weights: weights(json, false)?,
        ..RoutingConfig::new(json.size(&["num_experts_per_tok"])?)
    };
    let experts = ExpertsConfig::new(n_experts, routing).with_shared(shared);
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

/// Returns whether the selected experts' weights are normalized to 1, from `norm_topk_prob`.
pub(super) fn weights(json: &ConfigJson, default: bool) -> Result<RoutingWeights> {
    let default = default && !json.is_null("norm_topk_prob");
    Ok(match json.flag(&["norm_topk_prob"], default)? {
        true => RoutingWeights::Renormalized,
        false => RoutingWeights::Scores,
    })
}
