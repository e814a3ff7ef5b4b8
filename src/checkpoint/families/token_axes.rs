//! Decoders beside vision encoders whose tokens have positions in time, height and width: GLM-4V, GLM-OCR, GLM-Image,
//! PaddleOCR-VL, Cosmos 3 Edge and HunYuan-VL. Qwen's are in `qwen_axes.rs`.
//!
//! transformers' `Glm4vTextDecoderLayer`, `PaddleOCRDecoderLayer` and `Cosmos3EdgeTextDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/glm4v/modeling_glm4v.py>

use super::glm::{glm4_rules, interleaved};
use super::llama::{block, decoder, uniform, unrotated_block};
use super::mixtral::stacked_experts;
use super::prelude::*;
use super::qwen_axes::by_axes;
use super::sigmoid_experts::{chosen_by_sigmoids, glm4_moe};
use super::{arcee, hunyuan};

pub(super) fn families() -> Vec<Family> {
    let glm = |name: &str, config| {
        decoder(name, config)
            .replace_block_rules(glm4_rules())
            .new_names(|_| Ok(&["*.gate_up_proj.*"]))
    };
    let correction = "mlp.gate.e_score_correction_bias";
    vec![
        glm("glm4v_text", glm4v),
        // Its tokens follow those of images only.
        glm("glm_image_text", glm_image).head(HeadTask::CausalLm, |json, _| {
            next_token(OutputConfig::new(
                json.size_or(&["vision_vocab_size"], 16512)?,
            ))
        }),
        glm("glm_ocr_text", glm_ocr),
        chosen_by_sigmoids("glm4v_moe_text", glm4v_moe, correction)
            .block_rules(stacked_experts("mlp.experts")), // where the text is alone
        decoder("paddleocr_vl_text", paddleocr),
        decoder("cosmos3_edge_text", cosmos)
            .replace_block_rules([
                Rule::linear("feed_forward.up", &["mlp.up_proj", "mlp.fc1"]),
                Rule::linear("feed_forward.down", &["mlp.down_proj", "mlp.fc2"]),
            ])
            .block_rules([
                Rule::linear("attention.query", &["self_attn.to_q"]),
                Rule::linear("attention.key", &["self_attn.to_k"]),
                Rule::linear("attention.value", &["self_attn.to_v"]),
                Rule::linear("attention.output", &["self_attn.to_out"]),
            ]),
        // Without images the axes are equal; their number and order differ from file to file.
        hunyuan::table("hunyuan_vl_text", hunyuan::config),
    ]
}

/// Sets positions in time, height and width, in this order of pairs, for families with sections like GLM-4V's.
fn in_sections(json: &ConfigJson, block: BlockConfig) -> Result<StackConfig> {
    by_axes(
        json,
        uniform(json, block)?,
        AxesOrder::Sections,
        [8, 12, 12],
    )
}

/// Returns GLM-4V's block, whose heads divide the model's width.
fn glm4v(json: &ConfigJson) -> Result<StackConfig> {
    let heads = unrotated_block(&json.without("head_dim"), AttentionBias::new(true, false))?;
    in_sections(json, rotated(json, heads)?)
}

fn glm_ocr(json: &ConfigJson) -> Result<StackConfig> {
    in_sections(
        json,
        rotated(json, unrotated_block(json, AttentionBias::NONE)?)?,
    )
}

/// Adds norms around each sublayer and interleaved rotary embeddings.
fn rotated(json: &ConfigJson, block: BlockConfig) -> Result<BlockConfig> {
    let rotary = json.partial_rotary(block.attention()?.head_dim, 1.0, 10000.0)?;
    interleaved(sandwich_block(block), rotary)
}

fn glm_image(json: &ConfigJson) -> Result<StackConfig> {
    let has_bias = json.flag(&["attention_bias"], true)?;
    let mut block = sandwich_block(unrotated_block(json, AttentionBias::new(has_bias, false))?);
    let rotary = json.partial_rotary(block.attention()?.head_dim, 1.0, 10000.0)?;
    block.attention_mut()?.position = Position::Rotary(rotary);
    in_sections(json, block)
}

fn glm4v_moe(json: &ConfigJson) -> Result<StackConfig> {
    let stack = glm4_moe(&json.without("use_qk_norm"))?;
    by_axes(json, stack, AxesOrder::Sections, [8, 12, 12])
}

fn paddleocr(json: &ConfigJson) -> Result<StackConfig> {
    let has_bias = json.flag(&["use_bias"], false)?;
    let mut block = block(json, AttentionBias::new(has_bias, has_bias))?;
    block.feed_forward = block.feed_forward.with_bias(has_bias);
    block.attention_mut()?.dropout = 0.0; // independent of the file
    by_axes(
        json,
        uniform(json, block)?,
        AxesOrder::Sections,
        [16, 24, 24],
    )
}

fn cosmos(json: &ConfigJson) -> Result<StackConfig> {
    let stack = arcee::arcee(json)?;
    by_axes(json, stack, AxesOrder::Interleaved, [24, 20, 20])
}
