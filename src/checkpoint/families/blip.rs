//! The vision towers of BLIP, BLIP-2 and InstructBLIP: CLIP's blocks with a fused projection. The last norm applies to all
//! positions, and once more to the pooled one.
//!
//! transformers' `BlipVisionModel`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/blip/modeling_blip.py>

use super::clip::{VISION, end_of_text, towers};
use super::patches;
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let token = |role: &str, name: &str, n: usize| Rule::with_leading_ones(role, &[name], n);
    let tower = |name: &str| {
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
    };
    [
        "blip_vision_model",
        "blip_2_vision_model",
        "instructblip_vision_model",
        "instructblipvideo_vision_model",
    ]
    .map(tower)
    .into()
}

fn images(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    json.only("qkv_bias", &[json!(true)])?;
    let patches = patches::config(json, stack.blocks[0].d_model(), [224, 14])?;
    Ok(EmbeddingsConfig::Patches(patches))
}
