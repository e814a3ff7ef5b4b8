//! Single towers with CLIP's blocks, of models whose other parts are not loaded: CLIPSeg, OWL-ViT, OWLv2, X-CLIP, GroupViT,
//! AltCLIP, Chinese CLIP, GIT and KOSMOS-2.
//!
//! transformers' `CLIPEncoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/clip/modeling_clip.py>

use super::clip::{VISION, end_of_text, towers};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    // These pool a text at its highest token id, whatever the id of the end.
    let highest = |_: &ConfigJson, _: &StackConfig| Ok(ReadoutConfig::new(TokenSelection::Highest));
    let text = |name: &str, end: ReadReadout| {
        let [text, _] = towers(name, end);
        Family {
            joined: None,
            ..text.named(name)
        }
    };
    let image = |name: &str, size: usize, patch: usize| {
        let [_, vision] = towers(name, end_of_text);
        let table = vision
            .named(name)
            .default_of("image_size", size)
            .default_of("patch_size", patch);
        table.end_rules([Rule::norm("embeddings.norm", &["pre_layernorm"])])
    };
    let owl = |name: &str| text(name, highest).default_of("max_position_embeddings", 16);
    vec![
        text("clipseg_text_model", end_of_text),
        text("xclip_text_model", highest),
        text("groupvit_text_model", end_of_text)
            .default_of("hidden_size", 256)
            .default_of("num_attention_heads", 4)
            .default_of("intermediate_size", 1024),
        owl("owlvit_text_model"),
        owl("owlv2_text_model"),
        image("clipseg_vision_model", 224, 32),
        image("altclip_vision_model", 224, 32),
        image("chinese_clip_vision_model", 224, 32),
        // All its positions are normalized.
        Family {
            pooler: None,
            ..image("git_vision_model", 224, 16).read_by(|json| VISION.config(json))
        },
        image("owlvit_vision_model", 768, 32),
        image("owlv2_vision_model", 768, 16),
        image("kosmos_2_vision_model", 224, 14)
            .prefixes(&["vision_model.model.", "model.", ""])
            .default_of("hidden_size", 1024)
            .default_of("num_attention_heads", 16)
            .default_of("num_hidden_layers", 24)
            .default_of("intermediate_size", 4096),
    ]
}
