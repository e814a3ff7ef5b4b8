//! Sarvam: GLM-4 MoE's blocks under other names, and DeepSeek-V3's.
//!
//! transformers' `SarvamMoEConfig` and `SarvamMLAConfig`:
//! <https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/models/sarvam_mla/configuration_sarvam_mla.py>

use super::deepseek::{corrected, deepseek_v3};
use super::prelude::*;
use super::sigmoid_experts::{chosen_by_sigmoids, glm4_moe};

pub(super) fn families() -> Vec<Family> {
    let latent = corrected("sarvam_mla", sarvam_mla).default_of("q_lora_rank", Value::Null);
    vec![of_experts(), latent]
}

/// The table for the names on the Hub, with which transformers' `SarvamMoEConfig` opens GLM-4 MoE's class.
fn of_experts() -> Family {
    chosen_by_sigmoids("sarvam_moe", glm4_moe, "mlp.gate.expert_bias")
        .replace_block_rules(Rule::fused_attention(
            &["attention.query_key_value"],
            FusedLayout::Blocks,
        ))
        .replace_block_rules([
            Rule::linear("attention.output", &["attention.dense"]),
            Rule::norm("attention.query_norm", &["attention.query_layernorm"]),
            Rule::norm("attention.key_norm", &["attention.key_layernorm"]),
        ])
        .replace_end_rules([Rule::linear(
            "embeddings.word",
            &["word_embeddings", "embed_tokens"],
        )])
        .outside(&["*word_embeddings.*"])
}

/// DeepSeek-V3. Files on the Hub have the width of a cached row as `head_dim`, and YaRN under another name.
fn sarvam_mla(json: &ConfigJson) -> Result<StackConfig> {
    let json = json.without("head_dim");
    deepseek_v3(&match json.section(&["rope_scaling"])? {
        Some(of) if of.at("type").or(of.at("rope_type")) == Some(&json!("deepseek_yarn")) => {
            let scaling = of.without("type").with("rope_type", "yarn");
            json.with("rope_scaling", scaling.value().clone())
        }
        _ => json,
    })
}
