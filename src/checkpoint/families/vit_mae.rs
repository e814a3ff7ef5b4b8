//! ViT-MAE: the encoder with ViT's blocks and sinusoidal positions. Its decoder, which reconstructs masked patches, is not
//! loaded.
//!
//! Every patch is read in order, as in transformers with a `mask_ratio` of 0. Masking only matters for the decoder.
//!
//! transformers' `ViTMAEModel`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/vit_mae/modeling_vit_mae.py>

use super::{patches, prelude::*, vit::blocks};

pub(super) fn family() -> Family {
    blocks("vit_mae", &["vit.", ""])
        .embeddings(|json, stack| {
            Ok(EmbeddingsConfig::Patches(embeddings(
                json,
                stack.blocks[0].d_model(),
            )?))
        })
        .initialization(initialization)
}

fn embeddings(json: &ConfigJson, d_model: usize) -> Result<PatchEmbeddingsConfig> {
    patches::config(json, d_model, [224, 16])
}

fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let d_model = json.size(&["hidden_size"])?;
    let patches = embeddings(json, d_model)?;
    let [height, width] = patches.patch_size;
    // Xavier's uniform distribution for a linear layer.
    let sum = d_model + patches.n_channels * height * width;
    let bound = (6.0 / sum as f64).sqrt();
    Ok(initializer_range::normal(json)?
        .with("embeddings.patch.weight", Distribution::Uniform { bound })
        // transformers 5 intends to initialize them, but leaves them at 0.
        .with("embeddings.position.weight", Distribution::PatchSinusoids))
}
