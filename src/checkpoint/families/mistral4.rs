//! Mistral 4: latent attention with a temperature by position, and experts selected by a softmax.
//!
//! transformers' `Mistral4DecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/mistral4/modeling_mistral4.py>

use super::latent::{latent_block, latent_decoder};
use super::llama::uniform;
use super::ministral3::temperature;
use super::mixtral::{expert_rules, stacked_experts};
use super::prelude::*;
use super::sigmoid_experts::with_experts;

pub(super) fn family() -> Family {
    latent_decoder("mistral4", mistral4)
        .block_rules(stacked_experts("mlp.experts"))
        .block_rules(expert_rules()) // of GGUF files
        .block_rules(gated("feed_forward.shared", "mlp.shared_experts"))
        .class_sizes(&["n_shared_experts"])
}

/// The rotated share of a head, which follows from its dimensions.
const SHARE: &str = "partial_rotary_factor";

fn mistral4(json: &ConfigJson) -> Result<StackConfig> {
    let usual = json!({"type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1});
    let mut json = match json.rotary_section()? {
        Some(parameters) => {
            check(json, &parameters)?;
            json.clone()
        }
        None => json.with("rope_parameters", usual),
    };
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(parameters) = json.section(&[key])? {
            json = json.with(key, parameters.without(SHARE).value().clone());
        }
    }
    let json = &json.without(SHARE).without("head_dim"); // that of a whole head
    let mut block = latent_block(json, [1024, 256, 64, 64, 128], None)?;
    block.attention_mut()?.temperature = temperature(json)?;
    let stack = with_experts(json, uniform(json, block)?, true, |i| {
        Ok(i >= json.size_or(&["first_k_dense_replace"], 0)?)
    })?;
    Ok(stack.with_each(|_, block| {
        if let Some(experts) = &mut block.feed_forward.experts {
            experts.routing.scores = RoutingScores::Softmax;
            experts.routing.epsilon = 0.0; // no sum of probabilities is so small that transformers' 1e-20 would count
            experts.correction = false;
        }
    }))
}

/// Refuses a rotation that is not YaRN, or whose share is not that of the rotated dimensions.
fn check(json: &ConfigJson, parameters: &ConfigJson) -> Result<()> {
    let kind = parameters.text(&["rope_type", "type"])?;
    if kind.as_deref() != Some("yarn") {
        let reason = format!("is {kind:?}, expected \"yarn\"");
        return Err(parameters.error(&["rope_type"], reason));
    }
    let turned = json.size_or(&["qk_rope_head_dim"], 64)? as f64;
    let share = turned / (turned + json.size_or(&["qk_nope_head_dim"], 64)? as f64);
    match parameters.number(&[SHARE], share)? {
        found if (found - share).abs() > 1e-6 => {
            let reason = format!("is {found}, expected {share}, the rotated share of a head");
            Err(parameters.error(&[SHARE], reason))
        }
        _ => Ok(()),
    }
}
