//! Blocks of encoders whose embeddings are their own: of images in Ovis 2, Molmo 2, Idefics, Unlimited OCR and ViTPose, of audio in GLM-ASR,
//! and of AltCLIP's texts, whose positions are projected after the blocks.
//!
//! transformers' `Ovis2VisionEncoderLayer`, `Molmo2VisionEncoderLayer`, `VitPoseBackboneLayer`, `GlmAsrEncoderLayer` and
//! `AltRobertaLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/glmasr/modeling_glmasr.py>

use super::bert_like::encoder;
use super::blocks_alone::only;
use super::clip::VISION;
use super::prelude::*;
use super::tower::tower;
use super::towers_alone::{aimv2, aimv2_images};
use super::{llama, roberta, siglip, vit};

pub(super) fn families() -> Vec<Family> {
    let ovis2 = only(aimv2("ovis2_vision"))
        .prefixes(&["model.vision_tower.transformer.", "transformer.", ""])
        .read_by(aimv2_images)
        .outside(&["head_linear.*", "head_norm.*"]);
    let clip_tower =
        |name: &str, config| tower(Family::new(name, &[name], config), StackPart::Vision);
    let molmo2 = only(clip_tower("molmo2_vision", molmo2))
        .prefixes(&["model.vision_tower.", "vision_tower.", ""])
        .block("layers.{i}.")
        .replace_block_rules([Rule::linear("attention.output", &["self_attn.o_proj"])])
        .outside(&["positional_embedding", "patch_embedding.*"]);
    // Its positions for images of other sizes are interpolated in a way of their own.
    let idefics = only(clip_tower("idefics_vision", clip))
        .prefixes(&["model.vision_model.", "vision_model.", ""])
        .renamed("hidden_size", "embed_dim");
    let unlimited_ocr = only(clip_tower("unlimited_ocr_vision_encoder", clip))
        .prefixes(&["model.vision_model.", "vision_model.", ""])
        .block("transformer.layers.{i}.")
        .block_rules(Rule::fused_attention(
            &["self_attn.qkv_proj"],
            FusedLayout::Blocks,
        ));
    let vitpose = only(vit::blocks("vitpose_backbone", &["backbone.", ""]))
        .replace_block_rules([
            Rule::linear("feed_forward.up", &["mlp.fc1"]),
            Rule::linear("feed_forward.down", &["mlp.fc2"]),
        ])
        .read_by(|json| {
            json.only("num_experts", &[json!(1)])?;
            let d_model = json.size(&["hidden_size"])?;
            let d_ff = (d_model as f64 * json.number(&["mlp_ratio"], 4.0)?) as usize;
            vit::config(&json.with("intermediate_size", d_ff).without("head_dim"))
        })
        .outside(&["head.*"]);
    let alt = encoder(roberta::family("altclip_text_model", "roberta."))
        .prefixes(&["text_model.roberta.", "roberta.", ""])
        .block("encoder.layers.{i}.")
        .outside(&["pre_LN.*", "transformation.*"]);
    vec![
        ovis2,
        molmo2,
        idefics,
        unlimited_ocr,
        vitpose,
        only(alt),
        glm_asr(),
    ]
}

fn clip(json: &ConfigJson) -> Result<StackConfig> {
    Ok(without_final_norm(VISION.config(json)?))
}

fn without_final_norm(stack: StackConfig) -> StackConfig {
    StackConfig {
        final_norm: None,
        ..stack
    }
}

fn molmo2(json: &ConfigJson) -> Result<StackConfig> {
    let stack = siglip::VISION.config(&json.with("num_attention_heads", 1))?;
    let d_model = stack.blocks[0].d_model();
    let n_heads = json.size_or(&["num_attention_heads"], 16)?;
    let has_bias = json.flag(&["attention_bias"], true)?;
    let attention = attention_of(json, d_model, n_heads)?
        .with_kv_heads(json.size_or(&["num_key_value_heads"], n_heads)?)
        .with_bias(AttentionBias::new(has_bias, has_bias))
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    Ok(without_final_norm(stack.with_each(|_, block| {
        block.mixer = attention.clone().into()
    })))
}

/// GLM-ASR's blocks of audio: Llama's names, Whisper's biases and a rotary embedding over half of each head.
fn glm_asr() -> Family {
    only(llama::decoder("glmasr_encoder", |json| {
        let bias = AttentionBias {
            key: false,
            ..AttentionBias::ALL
        };
        let mut block = llama::block(json, bias)?;
        let head_dim = block.attention()?.head_dim;
        let rotary = json.partial_rotary(head_dim, 0.5, 10000.0)?;
        block.attention_mut()?.position = Position::Rotary(rotary.rounded_up());
        block.attention_mut()?.visibility = Visibility::Bidirectional;
        block.feed_forward = block
            .feed_forward
            .with_form(FeedForwardForm::Plain)
            .with_bias(true);
        block.norm = NormConfig::layer_norm(block.d_model(), 1e-5);
        llama::uniform(json, block)
    }))
    .prefixes(&["model.audio_tower.", "audio_tower.", ""])
    .replace_block_rules([
        Rule::linear("feed_forward.up", &["mlp.fc1"]),
        Rule::linear("feed_forward.down", &["mlp.fc2"]),
    ])
    .outside(&["conv1.*", "conv2.*"])
}
