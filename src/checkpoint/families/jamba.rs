//! Jamba: Mamba in most layers and attention without positions in the others; every second layer has experts.
//!
//! transformers' `JambaAttentionDecoderLayer` and `JambaMambaDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/jamba/modeling_jamba.py>

use super::llama::{decoder, uniform, unrotated_block};
use super::mamba::{mixer, of_states, rules};
use super::prelude::*;

pub(super) fn family() -> Family {
    let norm = |part: &str, name: &str| {
        let role = format!("attention.selective.{part}_norm");
        Rule::norm(&role, &[&format!("mamba.{name}_layernorm")])
    };
    decoder("jamba", jamba)
        .replace_block_rules([Rule::norm("feed_forward_norm", &["pre_ff_layernorm"])])
        .replace_block_rules(gated("feed_forward", "feed_forward"))
        .block_rules(gated(
            "feed_forward.experts.{e}",
            "feed_forward.experts.{e}",
        ))
        .block_rules([
            Rule::linear("feed_forward.router", &["feed_forward.router"]),
            norm("decay", "dt"),
            norm("key", "b"),
            norm("query", "c"),
        ])
        .block_rules(rules("mamba"))
        .replace_stack_rules([Rule::norm("final_norm", &["final_layernorm"])])
        .initialization(|json| {
            let deviation = initializer_range::deviation(json, 0.02)?;
            Ok(of_states(Initialization::normal(deviation)))
        })
}

fn jamba(json: &ConfigJson) -> Result<StackConfig> {
    let block = unrotated_block(json, AttentionBias::NONE)?;
    let inside = NormConfig::rms_norm(1, block.norm.eps);
    let mamba = mixer(json, block.norm.d_model, Some(inside))?;
    let n_experts = json.size_or(&["num_experts"], 16)?;
    let top_k = json.size_or(&["num_experts_per_tok"], 2)?;
    let experts = ExpertsConfig::new(n_experts, RoutingConfig::new(top_k));
    let attends = every(json, ["attn_layer_period", "attn_layer_offset"], [8, 4])?;
    let chooses = every(json, ["expert_layer_period", "expert_layer_offset"], [2, 1])?;
    Ok(uniform(json, block)?.with_each(|i, block| {
        if !attends(i) {
            block.mixer = mamba.into();
        }
        if n_experts > 1 && chooses(i) {
            block.feed_forward.experts = Some(experts);
        }
    }))
}

/// Returns which layers belong to a period, from an offset on. The keys name both, with their defaults.
fn every(
    json: &ConfigJson,
    [period, offset]: [&str; 2],
    default: [usize; 2],
) -> Result<impl Fn(usize) -> bool + use<>> {
    let every = json.width_or(&[period], default[0])?;
    let first = json.size_or(&[offset], default[1])?;
    if first >= every {
        let reason = format!("found {first}, expected less than {period}, {every}");
        return Err(json.error(&[offset], reason));
    }
    Ok(move |layer| layer % every == first)
}
