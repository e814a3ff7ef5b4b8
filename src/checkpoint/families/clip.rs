//! CLIP and SigLIP: a text tower and a vision tower of pre-norm blocks.
//!
//! transformers' `CLIPEncoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/clip/modeling_clip.py>, and `SiglipEncoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/siglip/modeling_siglip.py>

use crate::{
    Result,
    checkpoint::{
        config_json::ConfigJson,
        scheme::{Family, Rule, StackPart},
    },
    config::{
        Activation, AttentionConfig, BlockConfig, FeedForwardConfig, NormConfig, NormPlacement,
        StackConfig, Visibility,
    },
};

pub(super) fn families() -> Vec<Family> {
    let tower = |family: Family, part, prefixes| {
        let other = match part {
            StackPart::Text => "vision_model.*",
            _ => "text_model.*",
        };
        family
            .part(part)
            .prefixes(prefixes)
            .blocks(
                "encoder.layers.{i}.",
                [
                    Rule::norm("attention_norm", &["layer_norm1"]),
                    Rule::linear("attention.query", &["self_attn.q_proj"]),
                    Rule::linear("attention.key", &["self_attn.k_proj"]),
                    Rule::linear("attention.value", &["self_attn.v_proj"]),
                    Rule::linear("attention.output", &["self_attn.out_proj"]),
                    Rule::norm("feed_forward_norm", &["layer_norm2"]),
                    Rule::linear("feed_forward.up", &["mlp.fc1"]),
                    Rule::linear("feed_forward.down", &["mlp.fc2"]),
                ],
            )
            .stack_rules([Rule::norm(
                "final_norm",
                &["final_layer_norm", "post_layernorm"],
            )])
            .ignored(&["*position_ids"])
            .outside(&["embeddings.*", "head.*", other, "logit_*"])
            .outside(&["text_projection.*", "visual_projection.*", "*classifier.*"])
            .outside(&["*layrnorm.*", "post_layernorm.*"])
    };
    let (text, vision) = (["text_model.", ""], ["vision_model.", ""]);
    vec![
        tower(
            Family::new("clip", &["clip", "clip_text_model"], clip_text),
            StackPart::Text,
            &text,
        ),
        tower(
            Family::new("clip", &["clip", "clip_vision_model"], clip_vision),
            StackPart::Vision,
            &vision,
        ),
        tower(
            Family::new("siglip", &["siglip", "siglip_text_model"], siglip_text),
            StackPart::Text,
            &text,
        ),
        tower(
            Family::new("siglip", &["siglip", "siglip_vision_model"], siglip_vision),
            StackPart::Vision,
            &vision,
        ),
    ]
}

fn clip_text(json: &ConfigJson) -> Result<StackConfig> {
    config(
        json,
        "text_config",
        Visibility::Causal,
        Activation::QuickGelu,
        1e-5,
    )
}

fn clip_vision(json: &ConfigJson) -> Result<StackConfig> {
    let vision = config(
        json,
        "vision_config",
        Visibility::Bidirectional,
        Activation::QuickGelu,
        1e-5,
    )?;
    // Its last norm is for the pooled output alone.
    Ok(StackConfig {
        final_norm: None,
        ..vision
    })
}

fn siglip_text(json: &ConfigJson) -> Result<StackConfig> {
    config(
        json,
        "text_config",
        Visibility::Bidirectional,
        Activation::GeluTanh,
        1e-6,
    )
}

fn siglip_vision(json: &ConfigJson) -> Result<StackConfig> {
    config(
        json,
        "vision_config",
        Visibility::Bidirectional,
        Activation::GeluTanh,
        1e-6,
    )
}

/// The tower described in `section`, or in the file itself if it holds one tower.
fn config(
    json: &ConfigJson,
    section: &str,
    visibility: Visibility,
    activation: Activation,
    eps: f64,
) -> Result<StackConfig> {
    let section = json.section(&[section])?;
    let json = section.as_ref().unwrap_or(json);
    let d_model = json.size(&["hidden_size"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .with_visibility(visibility)
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], activation)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], eps)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}
