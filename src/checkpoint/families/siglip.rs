//! SigLIP: CLIP's two towers with other settings.
//!
//! transformers' `SiglipEncoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/siglip/modeling_siglip.py>

use super::clip::{Tower, tower};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    vec![
        tower(
            Family::new("siglip", &["siglip", "siglip_text_model"], |json| {
                TEXT.config(json)
            })
            .initialization(|json| initialization(json, &TEXT)),
            StackPart::Text,
        ),
        tower(
            Family::new("siglip", &["siglip", "siglip_vision_model"], |json| {
                VISION.config(json)
            })
            .initialization(|json| initialization(json, &VISION))
            .new_names(|_| Ok(&["*.post_layernorm.*"])),
            StackPart::Vision,
        ),
    ]
}

const TEXT: Tower = Tower {
    section: "text_config",
    visibility: Visibility::Bidirectional,
    activation: Activation::GeluTanh,
    eps: 1e-6,
    width: 768,
};
const VISION: Tower = Tower {
    section: "vision_config",
    ..TEXT
};

/// Xavier's uniform distribution.
fn initialization(json: &ConfigJson, tower: &Tower) -> Result<Initialization> {
    let block = &tower.config(json)?.blocks[0];
    let (width, d_ff) = (block.d_model() as f64, block.feed_forward.d_ff as f64);
    let xavier = |d_in: f64, d_out: f64| Draw::Uniform {
        bound: (6.0 / (d_in + d_out)).sqrt(),
    };
    let almost_zero = Draw::Normal { deviation: 1e-6 };
    Ok(Initialization::normal(0.02)
        .with("*attention.*.weight", xavier(width, width))
        .with("*feed_forward.*.weight", xavier(width, d_ff))
        .with("*feed_forward.*.bias", almost_zero))
}
