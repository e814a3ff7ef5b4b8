//! Granite 4 H: Granite's blocks with Mamba-2 in most layers, dense or with experts and a shared expert.
//!
//! transformers' `GraniteMoeHybridDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/granitemoehybrid/modeling_granitemoehybrid.py>

use super::granite::{granite, granitemoe, shared, shared_rules, stacked_experts, table};
use super::layer_types::{FULL, LINEAR};
use super::mamba_mixer::{initialization, mixer, rules};
use super::prelude::*;

pub(super) fn family() -> Family {
    let dense = [
        Rule::fused_gate(&["shared_mlp.input_linear"], GateHalf::First).to_vec(),
        vec![Rule::linear(
            "feed_forward.down",
            &["shared_mlp.output_linear"],
        )],
    ];
    stacked_experts(table("granitemoehybrid", granitemoehybrid))
        .block_rules(shared_rules())
        .block_rules(gated("feed_forward.shared", "shared_mlp")) // of GGUF files
        .block_rules(dense.concat())
        .block_rules(rules("mamba"))
        .initialization(initialization)
}

fn granitemoehybrid(json: &ConfigJson) -> Result<StackConfig> {
    let stack = match json.size_or(&["num_local_experts"], 8)? {
        0 => granite(&json.with(
            "intermediate_size",
            json.size_or(&["shared_intermediate_size"], 1024)?,
        ))?,
        _ => shared(json, granitemoe(json)?)?,
    };
    json.only("position_embedding_type", &[Value::Null, json!("rope")])?;
    let is_turned = json.text(&["position_embedding_type"])?.is_some();
    let known = [FULL, LINEAR, "mamba"]; // the last is an older name
    let kinds = json.layer_types(stack.blocks.len(), &known, |_| LINEAR)?;
    if kinds.iter().any(|kind| *kind != FULL) {
        json.only("hidden_act", &["silu".into(), "swish".into()])?; // of the convolutions too
    }
    let mamba = mixer(json, stack.blocks[0].norm)?;
    Ok(stack.with_each(|i, block| {
        if kinds[i] != FULL {
            block.mixer = mamba.into();
        } else if let (false, Ok(attention)) = (is_turned, block.attention_mut()) {
            attention.position = Position::None;
        }
    }))
}
