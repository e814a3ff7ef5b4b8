//! Encoders with ViT's blocks: ViT-MAE's, FLAVA's, and the vision encoders of InternVL and Qianfan-OCR, with layer scale and optional norms of
//! queries and keys.
//!
//! transformers' `InternVLVisionLayer` and `FlavaLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/internvl/modeling_internvl.py>

use super::encoder::*;
use super::prelude::*;
use super::{bert, patches, vit};

pub(super) fn families() -> Vec<Family> {
    let encoder = |name: &str| {
        vit::blocks(name, &["model.vision_tower.", "vision_tower.", ""])
            .replace_block_rules([
                Rule::linear("attention.query", &["attention.q_proj"]),
                Rule::linear("attention.key", &["attention.k_proj"]),
                Rule::linear("attention.value", &["attention.v_proj"]),
                Rule::linear("attention.output", &["attention.projection_layer"]),
                Rule::norm("attention.query_norm", &["attention.q_norm"]),
                Rule::norm("attention.key_norm", &["attention.k_norm"]),
                Rule::named("attention_layer_scale", &["lambda_1"], &[]),
                Rule::linear("feed_forward.up", &["mlp.fc1"]),
                Rule::linear("feed_forward.down", &["mlp.fc2"]),
                Rule::named("feed_forward_layer_scale", &["lambda_2"], &[]),
            ])
            .read_by(config)
            .embeddings(images)
            .initialization(initialization)
            .renamed("qkv_bias", "attention_bias")
            .renamed("attention_probs_dropout_prob", "attention_dropout")
    };
    let [image, text] = flava();
    vec![
        vit_mae(),
        image,
        text,
        encoder("internvl_vision"),
        encoder("qianfan_ocr_vision").block("layers.{i}."),
    ]
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let mut stack = vit::config(&json.without("head_dim"))?;
    let d_model = stack.blocks[0].d_model();
    if json.flag(&["use_mean_pooling"], true)? {
        stack.final_norm = None;
    }
    json.only("norm_type", &["layer_norm", "rms_norm"].map(Value::from))?;
    let is_rms = json.text(&["norm_type"])?.as_deref() == Some("rms_norm");
    let query_key_norm = match json.flag(&["use_qk_norm"], false)? {
        true => Some(QueryKeyNorm::new(
            NormConfig::rms_norm(d_model, 1e-6),
            QueryKeyNormSpan::Whole,
        )),
        false => None,
    };
    let dropout = json.number(&["projection_dropout"], 0.0)?;
    let stack = stack.with_each_attention(|_, attention| attention.query_key_norm = query_key_norm);
    let stack = stack.with_each(|_, block| {
        block.residual.layer_scale = true;
        block.residual.attention_dropout = dropout;
        if is_rms {
            block.norm = NormConfig::rms_norm(d_model, block.norm.eps);
        }
    });
    Ok(stack.with_rising_drop_path(json.number(&["drop_path_rate"], 0.0)?))
}

fn images(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    Ok(EmbeddingsConfig::Patches(PatchEmbeddingsConfig {
        positions: json.flag(&["use_absolute_position_embeddings"], true)?,
        dropout: json.number(&["hidden_dropout_prob"], 0.0)?,
        ..patches::config(json, stack.blocks[0].d_model(), [448, 14])?
    }))
}

fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let scale = json.number(&["layer_scale_init_value"], 0.1)?;
    Ok(initializer_range::normal(json)?
        .with("*_layer_scale.weight", Distribution::Constant(scale))
        .with("embeddings.class_token.weight", Distribution::Constant(0.0))
        .with("embeddings.position.weight", Distribution::Constant(0.0)))
}

/// FLAVA's encoders; that of texts has BERT's embeddings.
fn flava() -> [Family; 2] {
    let tower = |name: &str, place: &str| {
        vit::blocks(
            name,
            &[&format!("flava.{place}."), &format!("{place}."), ""],
        )
        .end_rules([Rule::linear("pooler.transform", &["pooler.dense"])])
        .read_by(|json| vit::config(&json.without("head_dim")))
        .pooler(|_, stack| Ok(first_through_tanh(stack)))
    };
    [
        tower("flava_image_model", "image_model").embeddings(|json, stack| {
            let width = stack.blocks[0].d_model();
            Ok(EmbeddingsConfig::Patches(PatchEmbeddingsConfig {
                dropout: hidden_dropout(json)?,
                ..patches::config(json, width, [224, 16])?
            }))
        }),
        tower("flava_text_model", "text_model")
            .end_rules(embedding_rules())
            .embeddings(|json, stack| bert::embeddings(json, stack, ALL_POSITIONS)),
    ]
}

/// ViT-MAE's encoder, with sinusoidal positions. Its decoder, which reconstructs masked patches, is not loaded. Every patch is read in
/// order, as in transformers with a `mask_ratio` of 0. Masking only matters for the decoder.
fn vit_mae() -> Family {
    vit::blocks("vit_mae", &["vit.", ""])
        .embeddings(|json, stack| {
            Ok(EmbeddingsConfig::Patches(of_mae(
                json,
                stack.blocks[0].d_model(),
            )?))
        })
        .initialization(drawn_for_mae)
}

fn of_mae(json: &ConfigJson, d_model: usize) -> Result<PatchEmbeddingsConfig> {
    patches::config(json, d_model, [224, 16])
}

fn drawn_for_mae(json: &ConfigJson) -> Result<Initialization> {
    let d_model = json.size(&["hidden_size"])?;
    let patches = of_mae(json, d_model)?;
    let [height, width] = patches.patch_size;
    // Xavier's uniform distribution for a linear layer.
    let sum = d_model + patches.n_channels * height * width;
    let bound = (6.0 / sum as f64).sqrt();
    Ok(initializer_range::normal(json)?
        .with("embeddings.patch.weight", Distribution::Uniform { bound })
        // transformers 5 intends to initialize them, but leaves them at 0.
        .with("embeddings.position.weight", Distribution::PatchSinusoids))
}
