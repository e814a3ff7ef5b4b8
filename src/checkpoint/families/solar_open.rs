//! Solar Open: Llama's blocks with GLM-4 MoE's experts in every layer.
//!
//! transformers' `SolarOpenDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/solar_open/modeling_solar_open.py>

use super::glm::bias_of_inputs;
use super::llama::{block, uniform};
use super::prelude::*;
use super::sigmoid_experts::{chosen_by_sigmoids, with_experts};

pub(super) fn family() -> Family {
    chosen_by_sigmoids("solar_open", config, "mlp.gate.e_score_correction_bias")
        .class_sizes(&["num_experts_per_tok"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    // All feed-forwards are experts.
    let json = &json.with_default("intermediate_size", json.size(&["moe_intermediate_size"])?);
    let mut block = block(json, bias_of_inputs(json)?)?;
    json.only_whole_heads()?; // else transformers fails
    let rotary = json.rotary(block.attention()?.head_dim, 1e6)?;
    block.attention_mut()?.position = Position::Rotary(rotary);
    with_experts(json, uniform(json, block)?, true, |_| Ok(true))
}
