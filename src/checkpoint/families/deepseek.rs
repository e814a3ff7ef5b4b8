//! DeepSeek-V2 and V3: Llama's blocks with multi-head latent attention and experts.
//!
//! transformers' `DeepseekV2Attention`, `DeepseekV2TopkRouter`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/deepseek_v2/modeling_deepseek_v2.py>, and
//! `DeepseekV3Attention`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/deepseek_v3/modeling_deepseek_v3.py>

use super::latent::{USUAL, latent_block, latent_decoder};
use super::llama::uniform;
use super::mixtral::expert_rules;
use super::prelude::*;
use super::sigmoid_experts::{correction, with_experts};

pub(super) fn families() -> Vec<Family> {
    vec![
        experts("deepseek_v2", deepseek_v2),
        corrected("deepseek_v3", deepseek_v3),
        corrected("kimi_k2", deepseek_v3).like_class("deepseek_v3"), // DeepSeek's code, under a type of its own
    ]
}

/// The table for latent attention with experts.
fn experts(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    latent_decoder(name, config)
        .block_rules(expert_rules())
        .block_rules(gated("feed_forward.shared", "mlp.shared_experts"))
        .class_sizes(&["n_shared_experts"])
}

/// The table with correction biases for the experts' scores.
pub(super) fn corrected(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    experts(name, config).block_rules([correction("mlp.gate.e_score_correction_bias")])
}

fn deepseek_v2(json: &ConfigJson) -> Result<StackConfig> {
    let block = latent_block(json, USUAL, Some(RotaryPairing::Interleaved))?;
    json.only("mlp_bias", &[false.into()])?; // experts would not have this bias
    let stack = with_experts(json, uniform(json, block)?, false, |i| {
        Ok(i >= json.size_or(&["first_k_dense_replace"], 0)?)
    })?;
    softmax_scores(json, stack)
}

/// Selects experts by a softmax, in the groups that `topk_method` names.
pub(super) fn softmax_scores(json: &ConfigJson, stack: StackConfig) -> Result<StackConfig> {
    let method = json.text(&["topk_method"])?.unwrap_or("greedy".into());
    json.only(
        "topk_method",
        &["greedy", "group_limited_greedy"].map(Value::from),
    )?;
    Ok(stack.with_each(|_, block| {
        if let Some(experts) = &mut block.feed_forward.experts {
            let routing = &mut experts.routing;
            (routing.scores, routing.weights) = (RoutingScores::Softmax, RoutingWeights::Scores);
            routing.epsilon = 0.0;
            routing.groups = match &*method {
                "greedy" => None,
                _ => routing.groups.map(|groups| ExpertGroups {
                    judged_by: 1,
                    ..groups
                }),
            };
            experts.correction = false;
        }
    }))
}

pub(super) fn deepseek_v3(json: &ConfigJson) -> Result<StackConfig> {
    deepseek_v3_with(json, |i| {
        Ok(i >= json.size_or(&["first_k_dense_replace"], 3)?)
    })
}

/// Reads DeepSeek-V3's keys, with experts in the layers that `has_experts` selects.
pub(super) fn deepseek_v3_with(
    json: &ConfigJson,
    has_experts: impl Fn(usize) -> Result<bool>,
) -> Result<StackConfig> {
    json.only_whole_heads()?; // else transformers rotates the whole head with fewer frequencies
    let block = latent_block(json, USUAL, None)?;
    with_experts(json, uniform(json, block)?, true, has_experts)
}
