//! SigLIP 2: SigLIP's towers. The vision tower accepts images of any shape.
//!
//! transformers' `Siglip2VisionModel`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/siglip2/modeling_siglip2.py>

use super::prelude::*;
use super::siglip::{VISION, of_images, text, vision};

pub(super) fn families() -> Vec<Family> {
    vec![
        text("siglip2", &["siglip2", "siglip2_text_model"]),
        vision("siglip2", &["siglip2", "siglip2_vision_model"])
            .embeddings(|json, stack| Ok(EmbeddingsConfig::Patches(of_any_shape(json, stack)?))),
    ]
}

/// Returns patch embeddings for images of any shape, with positions interpolated from a square. Images in a batch must have
/// the same shape.
fn of_any_shape(json: &ConfigJson, stack: &StackConfig) -> Result<PatchEmbeddingsConfig> {
    let section = VISION.section(json)?;
    let n_patches = section.size_or(&["num_patches"], 256)?;
    let side = n_patches.isqrt();
    if side * side != n_patches {
        let reason = format!("is {n_patches}; expected a square number, for the position table");
        return Err(section.error(&["num_patches"], reason));
    }
    let patch = section.size_or(&["patch_size"], 16)?;
    Ok(PatchEmbeddingsConfig {
        image_size: [side.saturating_mul(patch); 2],
        resizing: Resizing::SmoothLinear,
        pixels: PixelOrder::PixelByPixel,
        ..of_images(json, stack)?
    })
}
