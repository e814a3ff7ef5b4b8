//! GLM 4 and Helium: Llama's blocks with interleaved rotary embeddings. GLM's are partial, its gate is fused, and GLM 0414
//! has norms before and after each sublayer.
//!
//! transformers' `GlmDecoderLayer`, `Glm4DecoderLayer` and `HeliumDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/glm4/modeling_glm4.py>

use super::llama::{block, decoder, uniform, with_mlp_bias};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let glm = |name: &str, config| {
        decoder(name, config)
            .default_of("num_key_value_heads", 2)
            .default_of("head_dim", 128)
            .default_of("rms_norm_eps", 1.5625e-7)
            .default_of("attention_bias", true)
            .default_of("pad_token_id", 151329)
            .new_names(|_| Ok(&["*.gate_up_proj.*"]))
    };
    let glm4 = glm("glm4", glm4_config).replace_block_rules(glm4_rules());
    let helium = decoder("helium", helium_config)
        .default_of("num_key_value_heads", 20)
        .default_of("head_dim", 128)
        .default_of("rms_norm_eps", 1e-8)
        .default_of("pad_token_id", 3);
    vec![glm("glm", glm_config), glm4, helium]
}

/// Rules for GLM 0414's norms after each sublayer.
pub(super) fn glm4_rules() -> [Rule; 2] {
    [
        Rule::norm("attention_output_norm", &["post_self_attn_layernorm"]),
        Rule::norm("feed_forward_output_norm", &["post_mlp_layernorm"]),
    ]
}

fn glm_config(json: &ConfigJson) -> Result<StackConfig> {
    uniform(json, glm_block(json)?)
}

fn glm4_config(json: &ConfigJson) -> Result<StackConfig> {
    uniform(json, sandwich_block(glm_block(json)?))
}

fn glm_block(json: &ConfigJson) -> Result<BlockConfig> {
    let block = block(json, bias_of_inputs(json)?)?;
    let rotary = json.partial_rotary(block.attention.head_dim, 0.5, 10000.0)?;
    Ok(interleaved(block, rotary))
}

fn helium_config(json: &ConfigJson) -> Result<StackConfig> {
    let block = with_mlp_bias(json, block(json, bias_of_inputs(json)?)?)?;
    let rotary = json.rotary(block.attention.head_dim, 1e5)?;
    uniform(json, interleaved(block, rotary))
}

/// Returns `attention_bias` for queries, keys and values.
pub(super) fn bias_of_inputs(json: &ConfigJson) -> Result<AttentionBias> {
    let has_bias = json.flag(&["attention_bias"], false)?;
    Ok(AttentionBias::new(has_bias, false))
}

/// Returns the block with interleaved rotary embeddings.
pub(super) fn interleaved(mut block: BlockConfig, rotary: RotaryConfig) -> BlockConfig {
    let rotary = rotary.with_pairing(RotaryPairing::Interleaved);
    block.attention.position = Position::Rotary(rotary);
    block
}
