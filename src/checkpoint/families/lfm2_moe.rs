//! LFM2-MoE: LFM2's layers with experts selected by sigmoids plus a learned correction.
//!
//! transformers' `Lfm2MoeSparseMoeBlock`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/lfm2_moe/modeling_lfm2_moe.py>

use super::layer_types::FULL;
use super::lfm2::{CONVOLUTION, block, table, with_convolutions};
use super::llama::uniform;
use super::mixtral::{stacked_experts, weights};
use super::prelude::*;
use super::sigmoid_experts::correction;

pub(super) fn family() -> Family {
    let expert = |(part, name): (&str, &str)| {
        let stem = format!("feed_forward.experts.{{e}}.{name}");
        Rule::linear(&format!("feed_forward.experts.{{e}}.{part}"), &[&stem])
    };
    let experts = [("gate", "w1"), ("up", "w3"), ("down", "w2")].map(expert);
    table("lfm2_moe", lfm2_moe)
        .block_rules([Rule::linear("feed_forward.router", &["feed_forward.gate"])])
        .block_rules(experts)
        .block_rules(stacked_experts("feed_forward.experts"))
        .block_rules([correction("feed_forward.expert_bias")])
}

fn lfm2_moe(json: &ConfigJson) -> Result<StackConfig> {
    let stack = uniform(json, block(json)?)?;
    let weights = weights(json, true)?;
    let routing = RoutingConfig {
        scores: RoutingScores::Sigmoid,
        weights,
        scale: json.number(&["routed_scaling_factor"], 1.0)?,
        epsilon: match weights {
            RoutingWeights::Renormalized => 1e-6,
            _ => 0.0,
        },
        ..RoutingConfig::new(json.size_or(&["num_experts_per_tok"], 4)?)
    };
    let experts = ExpertsConfig::new(json.size_or(&["num_experts"], 32)?, routing)
        .with_correction(json.flag(&["use_expert_bias"], true)?);
    let d_ff = json.size_or(&["moe_intermediate_size"], 1792)?;
    let first = json.size_or(&["num_dense_layers"], 2)?;
    let stack = stack.with_each(|i, block| {
        if i >= first {
            block.feed_forward.d_ff = d_ff;
            block.feed_forward.experts = Some(experts);
        }
    });
    let kinds = json.layer_types(stack.blocks.len(), &[FULL, CONVOLUTION], |_| FULL)?;
    with_convolutions(json, stack, &kinds)
}
