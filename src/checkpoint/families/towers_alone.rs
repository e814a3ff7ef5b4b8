//! Single towers of AIMv2, Janus and TIPSv2, whose other parts are not loaded.
//!
//! transformers' `Aimv2TextModel`, `JanusVisionModel` and `Tipsv2TextModel`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/tipsv2/modeling_tipsv2.py>

use super::prelude::*;
use super::tower::{Tower, open_clip_rules, tower};
use super::{clip, llama, patches, siglip};

pub(super) fn families() -> Vec<Family> {
    vec![aimv2_text(), janus(), tipsv2_text()]
}

/// The table for AIMv2's text tower: Llama's blocks with learned positions.
fn aimv2_text() -> Family {
    aimv2("aimv2_text_model")
        .prefixes(&["text_model.", ""])
        .end_rules([
            Rule::linear("embeddings.word", &["embeddings.token_embedding"]),
            Rule::linear("embeddings.position", &["embeddings.position_embedding"]),
        ])
        .embeddings(|json, stack| {
            let n_positions = json.size_or(&["max_position_embeddings"], 77)?;
            Ok(token_embeddings(json, stack)?
                .with_positions(n_positions)
                .into())
        })
        .pooler(|json, _| {
            let end = json.size_or(&["eos_token_id"], 49407)?;
            Ok(ReadoutConfig::new(TokenSelection::FirstOf(end as u32)))
        })
}

/// The table for the blocks of both towers of AIMv2.
pub(super) fn aimv2(name: &str) -> Family {
    llama::decoder(name, aimv2_stack)
        .block("encoder.layers.{i}.")
        .replace_block_rules([
            Rule::norm("attention_norm", &["rms_norm1"]),
            Rule::linear("attention.query", &["attention.q_proj"]),
            Rule::linear("attention.key", &["attention.k_proj"]),
            Rule::linear("attention.value", &["attention.v_proj"]),
            Rule::linear("attention.output", &["attention.out_proj"]),
            Rule::norm("feed_forward_norm", &["rms_norm2"]),
        ])
        .block_rules(gated("feed_forward", "ffn"))
        .replace_stack_rules([Rule::norm("final_norm", &["rms_norm"])])
        .without_embeddings_and_heads()
        .outside(&["embeddings.*"])
}

fn aimv2_stack(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.without("head_dim").without("num_key_value_heads");
    let has_bias = json.flag(&["qkv_bias"], false)?;
    let bias = AttentionBias::new(has_bias, has_bias);
    let mut block = llama::with_mlp_bias(json, llama::block(json, bias)?)?;
    block.attention_mut()?.position = Position::None;
    llama::uniform(json, block)
}

/// The table for the vision tower of Janus: SigLIP's without its pooler.
fn janus() -> Family {
    let table = Family::new("janus_vision_model", &["janus_vision_model"], |json| {
        json.only("use_qk_norm", &[json!(false)])?;
        let d_model = json.size(&["hidden_size"])?;
        let d_ff = (d_model as f64 * json.number(&["mlp_ratio"], 4.0)?) as usize;
        let json = &json.with("intermediate_size", d_ff);
        let has_bias = json.flag(&["attention_bias"], true)?;
        let hidden = json.number(&["hidden_dropout_rate"], 0.0)?;
        let projection = json.number(&["projection_dropout"], 0.0)?;
        let bias = AttentionBias::new(has_bias, true);
        let stack = siglip::VISION.config(json)?;
        let stack = stack.with_each_attention(|_, attention| attention.bias = bias);
        Ok(stack.with_each(|_, block| {
            block.feed_forward.dropout = hidden;
            block.residual.feed_forward_dropout = hidden;
            block.residual.attention_dropout = projection;
        }))
    });
    tower(table, StackPart::Vision)
        .replace_block_rules([Rule::linear(
            "attention.output",
            &["self_attn.projection_layer"],
        )])
        .embeddings(|json, stack| {
            Ok(EmbeddingsConfig::Patches(PatchEmbeddingsConfig {
                class_token: false,
                ..patches::config(json, stack.blocks[0].d_model(), [384, 16])?
            }))
        })
        .pooler(clip::first_normed)
}

const TIPS: Tower = Tower {
    section: "text_config",
    visibility: Visibility::Bidirectional,
    activation: Activation::Relu,
    eps: 1e-5,
    width: 768,
};

/// The table for the text tower of TIPSv2: CLIP's blocks under OpenCLIP's names, and sinusoidal positions.
fn tipsv2_text() -> Family {
    let table = Family::new("tipsv2_text_model", &["tipsv2_text_model"], |json| {
        json.only("pooling_epsilon", &[json!(1e-8), json!(0.0)])?;
        TIPS.config(json)
    });
    table
        .prefixes(&["text_encoder.", "text_model.", ""])
        .block("transformer.resblocks.{i}.")
        .block_rules(open_clip_rules())
        .stack_rules([Rule::norm("final_norm", &["ln_final"])])
        .end_rules([Rule::linear("embeddings.word", &["token_embedding"])])
        .embeddings(|json, stack| {
            let positions = PositionTableConfig {
                n_rows: json.size_or(&["max_position_embeddings"], 64)?,
                vectors: PositionVectors::Sines(LastFrequency::Reached),
                ..ALL_POSITIONS
            };
            let embeddings = token_embeddings(json, stack)?.with_position_table(positions);
            let scale = match json.flag(&["scale_sqrt_depth"], true)? {
                true => (stack.blocks[0].d_model() as f64).sqrt(),
                false => 1.0,
            };
            Ok(embeddings.with_scale(scale).into())
        })
        .pooler(|_, _| Ok(ReadoutConfig::new(TokenSelection::Mean)))
        .outside(&["token_embedding.*"])
}

/// Returns AIMv2's stack for images, in which every patch attends to all.
pub(super) fn aimv2_images(json: &ConfigJson) -> Result<StackConfig> {
    let stack = aimv2_stack(json)?;
    Ok(stack.with_each_attention(|_, attention| attention.visibility = Visibility::Bidirectional))
}
