//! Aria's text: Llama's blocks with stacked experts, selected by a softmax over the best scores, and shared experts.
//!
//! transformers' `AriaTextMoELayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/aria/modeling_aria.py>

use super::llama::{biased_block, decoder, uniform};
use super::mixtral::experts_in_out;
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("aria_text", config)
        .block_rules([Rule::linear("feed_forward.router", &["mlp.router"])])
        .block_rules(aria_experts())
        .block_rules(experts_in_out("mlp.experts"))
        .block_rules(gated("feed_forward.shared", "mlp.shared_experts"))
        .class_sizes(&["intermediate_size"])
}

/// Aria's names for its experts on disk.
fn aria_experts() -> impl Iterator<Item = Rule> {
    let renamed = |rule: Rule| {
        let old = |name: &String| {
            let name = name.replace("gate_up_proj", "fc1.weight");
            name.replace("down_proj", "fc2.weight")
        };
        Rule {
            weight: rule.weight.iter().map(old).collect(),
            ..rule
        }
    };
    experts_in_out("mlp.experts").into_iter().map(renamed)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("hidden_act", &[json!("silu")])?; // only the shared experts would follow it
    json.only("mlp_bias", &[json!(false)])?; // likewise
    let mut block = biased_block(json)?;
    let d_ff = block.feed_forward.d_ff;
    let shared = SharedExpertConfig {
        d_ff: d_ff.saturating_mul(json.size_or(&["moe_num_shared_experts"], 2)?),
        gate: false,
    };
    let routing = RoutingConfig::renormalized(json.size_or(&["moe_topk"], 2)?);
    let experts = ExpertsConfig::new(json.size_or(&["moe_num_experts"], 8)?, routing);
    block.feed_forward.experts = Some(experts.with_shared(Some(shared)));
    uniform(json, block)
}
