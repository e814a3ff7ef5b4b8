//! Ministral 3: Llama's blocks with position-dependent temperature.
//!
//! transformers' `Ministral3Attention`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/ministral3/modeling_ministral3.py>

use super::llama::{block, decoder, uniform};
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("ministral3", ministral3)
}

pub(super) fn ministral3(json: &ConfigJson) -> Result<StackConfig> {
    let usual = json!({"type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1});
    let json = &match json.rotary_section()? {
        Some(_) => json.clone(),
        None => json.with_default("rope_parameters", usual),
    };
    let mut block = block(json, AttentionBias::NONE)?;
    block.norm.eps = json.number(&["rms_norm_eps"], 1e-5)?;
    block.attention_mut()?.window = json.optional_size(&["sliding_window"])?;
    block.attention_mut()?.temperature = temperature(json)?;
    uniform(json, block)
}

/// Returns the temperature by position that the rotation's parameters have, if there are any.
pub(super) fn temperature(json: &ConfigJson) -> Result<Option<PositionTemperature>> {
    let Some(parameters) = json.rotary_section()? else {
        return Ok(None);
    };
    let beta = "llama_4_scaling_beta";
    let missing = || parameters.error(&[beta], "missing, expected a number");
    let key = ["original_max_position_embeddings"];
    // With these rotations, transformers first uses the key outside.
    let outside = match parameters.text(&["rope_type", "type"])?.as_deref() {
        Some("yarn" | "llama3" | "longrope") => json.optional_size(&key)?,
        _ => None,
    };
    Ok(Some(PositionTemperature {
        beta: parameters.optional_number(&[beta])?.ok_or_else(missing)?,
        interval: match outside {
            Some(interval) => interval,
            None => parameters.size(&key)?,
        },
        offset: 0,
        by: TemperatureBy::Position,
    }))
}
