//! Phi-3 and 4: Llama's blocks with packed projections, and rotary embeddings of a part of each head in Phi-4-mini.
//!
//! transformers' `Phi3DecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/phi3/modeling_phi3.py>

use super::llama::{decoder, uniform, unrotated_block};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let phi =
        |name: &str| decoder(name, phi3).new_names(|_| Ok(&["*.qkv_proj.*", "*.gate_up_proj.*"]));
    vec![
        phi("phi3"),
        // Its text.
        phi("phi4_multimodal").outside(&["embed_tokens_extend.*"]),
    ]
}

fn phi3(json: &ConfigJson) -> Result<StackConfig> {
    if let Some(parameters) = json.rotary_section()? {
        // transformers reads this family's "yarn" as LongRoPE.
        for key in ["rope_type", "type"] {
            parameters.only(key, &["default", "longrope", "su"].map(Value::from))?;
        }
    }
    let mut block = unrotated_block(json, AttentionBias::NONE)?
        .with_residual_dropout(json.number(&["resid_pdrop"], 0.0)?);
    block.norm.eps = json.number(&["rms_norm_eps"], 1e-5)?;
    block.attention_mut()?.window = json.optional_size(&["sliding_window"])?;
    let rotary = json.partial_rotary(block.attention()?.head_dim, 1.0, 10000.0)?;
    block.attention_mut()?.position = Position::Rotary(rotary.rounded_up());
    uniform(json, block)
}
