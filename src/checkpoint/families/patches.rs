//! Patch embeddings, shared by families that read images.

use serde::Deserialize;

use super::prelude::*;

/// A size given once for both directions, or separately.
#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Square(usize),
    Each([usize; 2]),
}

/// Returns the patch embeddings that a file describes; `image` and `patch` are the default sizes.
pub(super) fn config(
    json: &ConfigJson,
    d_model: usize,
    [image, patch]: [usize; 2],
) -> Result<PatchEmbeddingsConfig> {
    let size = |key: &str, default: usize| -> Result<[usize; 2]> {
        Ok(match json.parsed(key)? {
            None => [default; 2],
            Some(Size::Square(size)) => [size; 2],
            Some(Size::Each(sizes)) => sizes,
        })
    };
    Ok(PatchEmbeddingsConfig {
        n_channels: json.size_or(&["num_channels"], 3)?,
        image_size: size("image_size", image)?,
        patch_size: size("patch_size", patch)?,
        ..PatchEmbeddingsConfig::new(image, patch, d_model)
    })
}

/// Rules with the names that most families use.
pub(super) fn rules() -> [Rule; 4] {
    let token = |role: &str, name: &str| Rule::with_leading_ones(role, &[name], 2);
    [
        Rule::linear(
            "embeddings.patch",
            &["embeddings.patch_embeddings.projection"],
        ),
        token("embeddings.class_token", "embeddings.cls_token"),
        token(
            "embeddings.distillation_token",
            "embeddings.distillation_token",
        ),
        Rule::with_leading_ones(
            "embeddings.position",
            &["embeddings.position_embeddings"],
            1,
        ),
    ]
}
