//! GLM-4 MoE, dots.llm1 and MiniMax M2: Llama's blocks with experts selected by sigmoids plus a learned correction.
//!
//! transformers' `DeepseekV3TopkRouter` and those like it: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/glm4_moe/modeling_glm4_moe.py>, and
//! `MiniMaxM2TopKRouter`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/minimax_m2/modeling_minimax_m2.py>

use super::glm::bias_of_inputs;
use super::llama::{bias, block, decoder, uniform, unrotated_block};
use super::mixtral::{expert_rules, mixtral_rules, weights};
use super::prelude::*;
use super::qwen::sliding_from;

/// MiniMax M2's key with a number for each layer: 1 for softmax attention, 0 for MiniMax M1's linear attention.
const ATTENTION_TYPES: &str = "attn_type_list";

pub(super) fn families() -> Vec<Family> {
    let deepseek =
        |name, config| chosen_by_sigmoids(name, config, "mlp.gate.e_score_correction_bias");
    vec![
        deepseek("glm4_moe", glm4_moe),
        deepseek("dots1", dots1),
        decoder("minimax_m2", minimax_m2)
            .block_rules(mixtral_rules())
            .block_rules([correction("block_sparse_moe.e_score_correction_bias")]),
    ]
}

/// Llama's table with experts, shared experts, and a correction for the selection, called `correction_name`.
pub(super) fn chosen_by_sigmoids(
    name: &str,
    config: fn(&ConfigJson) -> Result<StackConfig>,
    correction_name: &str,
) -> Family {
    decoder(name, config)
        .block_rules(expert_rules())
        .block_rules(gated("feed_forward.shared", "mlp.shared_experts"))
        .block_rules([correction(correction_name)])
        .class_sizes(&["n_shared_experts"])
}

/// Returns the rule for the learned correction of the experts' scores.
pub(super) fn correction(name: &str) -> Rule {
    Rule::named("feed_forward.router.correction", &[name], &[])
}

pub(super) fn glm4_moe(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.with_default("head_dim", whole_width_of_heads(json)?);
    let mut block = unrotated_block(json, bias_of_inputs(json)?)?;
    block.norm.eps = json.number(&["rms_norm_eps"], 1e-5)?;
    let rotary = json.partial_rotary(block.attention()?.head_dim, 0.5, 10000.0)?;
    block.attention_mut()?.position = Position::Rotary(rotary.rounded_up());
    if json.flag(&["use_qk_norm"], false)? {
        block.attention_mut()?.query_key_norm =
            Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    }
    with_experts(json, uniform(json, block)?, true, |i| {
        Ok(i >= json.size_or(&["first_k_dense_replace"], 1)?)
    })
}

/// Returns the heads' total width. It drops the remainder if the heads do not divide the model's width, like transformers'
/// default.
fn whole_width_of_heads(json: &ConfigJson) -> Result<usize> {
    let n_heads = json.size(&["num_attention_heads"])?;
    Ok(json
        .size(&["hidden_size"])?
        .checked_div(n_heads)
        .unwrap_or(0))
}

fn dots1(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, bias(json)?)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    let stack = with_experts(json, uniform(json, block)?, false, |i| {
        Ok(i >= json.size_or(&["first_k_dense_replace"], 0)?)
    })?;
    sliding_from(json, stack, 62)
}

fn minimax_m2(json: &ConfigJson) -> Result<StackConfig> {
    let types: Option<Vec<usize>> = json.parsed(ATTENTION_TYPES)?;
    if types.is_some_and(|types| types.iter().any(|&attention| attention != 1)) {
        let reason = "only 1, for softmax attention, is supported".to_string();
        return Err(json.error(&[ATTENTION_TYPES], reason));
    }
    let mut block = unrotated_block(json, AttentionBias::NONE)?;
    let head_dim = block.attention()?.head_dim;
    let share = match json.optional_size(&["rotary_dim"])? {
        Some(rotary_dim) => rotary_dim as f64 / head_dim as f64,
        None => 1.0,
    };
    let rotary = json.partial_rotary(head_dim, share, 5e6)?;
    block.attention_mut()?.position = Position::Rotary(rotary);
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Whole));
    let routing = RoutingConfig {
        scores: RoutingScores::Sigmoid,
        ..RoutingConfig::renormalized(json.size_or(&["num_experts_per_tok"], 8)?)
    };
    let n_experts = json.size_or(&["num_local_experts", "num_experts"], 256)?;
    let experts = ExpertsConfig::new(n_experts, routing).with_correction(true);
    block.feed_forward.experts = Some(experts);
    uniform(json, block)
}

/// Places experts in some layers, with the shared experts combined into a single wider one.
pub(super) fn with_experts(
    json: &ConfigJson,
    mut stack: StackConfig,
    renormalized: bool,
    has_experts: impl Fn(usize) -> Result<bool>,
) -> Result<StackConfig> {
    let n_groups = json.size_or(&["n_group"], 1)?;
    let groups = ExpertGroups {
        n_groups,
        top_groups: json.size_or(&["topk_group"], 1)?,
        judged_by: 2,
    };
    let weights = weights(json, renormalized)?;
    let routing = RoutingConfig {
        scores: RoutingScores::Sigmoid,
        weights,
        scale: json.number(&["routed_scaling_factor"], 1.0)?,
        epsilon: match weights {
            RoutingWeights::Renormalized => 1e-20,
            _ => 0.0,
        },
        groups: (n_groups > 1).then_some(groups),
        ..RoutingConfig::new(json.size(&["num_experts_per_tok"])?)
    };
    let d_ff = json.size(&["moe_intermediate_size"])?;
    let shared = SharedExpertConfig {
        d_ff: d_ff.saturating_mul(json.size(&["n_shared_experts"])?),
        gate: false,
    };
    let n_experts = json.size(&["n_routed_experts", "num_local_experts"])?;
    let experts = ExpertsConfig::new(n_experts, routing)
        .with_correction(true)
        .with_shared(Some(shared));
    for (i, block) in stack.blocks.iter_mut().enumerate() {
        if has_experts(i)? {
            block.feed_forward.d_ff = d_ff;
            block.feed_forward.experts = Some(experts);
        }
    }
    Ok(stack)
}
