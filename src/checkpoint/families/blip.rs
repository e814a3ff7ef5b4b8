//! The vision towers of BLIP, BLIP-2 and InstructBLIP: CLIP's blocks with a fused projection. The last norm applies to all
//! positions, and once more to the pooled one.
//!
//! transformers' `BlipVisionModel`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/blip/modeling_blip.py>

use super::clip::{VISION, end_of_text, towers};
use super::patches;
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let token = |role: &str, name: &str, n: usize| Rule::with_leading_ones(role, &[name], n);
    let tower = |name: &str, image: usize, patch: usize| {
        let [_, vision] = towers(name, end_of_text);
        vision
            .named(name)
            .without_heads()
            .read_by(|json| VISION.config(json))
            .block_rules(Rule::fused_attention(
                &["self_attn.qkv"],
                FusedLayout::Blocks,
            ))
            .replace_block_rules([Rule::linear("attention.output", &["self_attn.projection"])])
            .replace_end_rules([
                token("embeddings.class_token", "embeddings.class_embedding", 2),
                token("embeddings.position", "embeddings.position_embedding", 1),
            ])
            .embeddings(images)
            .initialization(initializer_range::normal)
            .default_of("initializer_range", 1e-10)
            .default_of("image_size", image)
            .default_of("patch_size", patch)
            .default_of("hidden_act", "gelu")
    };
    let wide = |name: &str| {
        tower(name, 224, 14)
            .default_of("hidden_size", 1408)
            .default_of("intermediate_size", 6144)
            .default_of("num_hidden_layers", 39)
            .default_of("num_attention_heads", 16)
            .default_of("layer_norm_eps", 1e-6)
    };
    vec![
        tower("blip_vision_model", 384, 16),
        wide("blip_2_vision_model"),
        wide("instructblip_vision_model"),
        wide("instructblipvideo_vision_model"),
    ]
}

fn images(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    json.only("qkv_bias", &[json!(true)])?;
    let patches = patches::config(json, stack.blocks[0].d_model(), [224, 14])?;
    Ok(EmbeddingsConfig::Patches(patches))
}
