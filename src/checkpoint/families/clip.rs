//! CLIP: a text tower and a vision tower of pre-norm blocks.
//!
//! transformers' `CLIPEncoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/clip/modeling_clip.py>

use crate::{
    Result,
    checkpoint::{
        config_json::ConfigJson,
        scheme::{Family, Rule, StackPart},
    },
    config::{
        Activation, AttentionConfig, BlockConfig, Draw, FeedForwardConfig, Initialisation,
        NormConfig, NormPlacement, StackConfig, Visibility,
    },
};

pub(super) fn families() -> Vec<Family> {
    vec![
        tower(
            Family::new("clip", &["clip", "clip_text_model"], text)
                .initialisation(|json| initialisation(json, TEXT)),
            StackPart::Text,
        ),
        tower(
            Family::new("clip", &["clip", "clip_vision_model"], vision)
                .initialisation(|json| initialisation(json, VISION)),
            StackPart::Vision,
        ),
    ]
}

pub(super) const TEXT: &str = "text_config";
pub(super) const VISION: &str = "vision_config";

/// One of two towers with CLIP's names.
pub(super) fn tower(family: Family, part: StackPart) -> Family {
    let prefixes = match part {
        StackPart::Text => ["text_model.", ""],
        _ => ["vision_model.", ""],
    };
    let other = match part {
        StackPart::Text => "vision_model.*",
        _ => "text_model.*",
    };
    family
        .part(part)
        .prefixes(&prefixes)
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
}

fn text(json: &ConfigJson) -> Result<StackConfig> {
    config(json, TEXT, Visibility::Causal, Activation::QuickGelu, 1e-5)
}

fn vision(json: &ConfigJson) -> Result<StackConfig> {
    let vision = config(
        json,
        VISION,
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

/// The tower described in `section`, or in the file itself if it holds one tower.
pub(super) fn config(
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

/// Smaller where a branch is added to the residual stream, by the depth of the tower.
fn initialisation(json: &ConfigJson, section: &str) -> Result<Initialisation> {
    let section = json.section(&[section])?;
    let json = section.as_ref().unwrap_or(json);
    let factor = json.number(&["initializer_factor"], 1.0)?;
    let width = json.size(&["hidden_size"])? as f64;
    let depth = json.n_blocks(&["num_hidden_layers"])? as f64;
    let normal = |by: f64| Draw::Normal {
        deviation: factor / by.sqrt(),
    };
    Ok(Initialisation::normal(0.02)
        .with("*attention.*.weight", normal(width * 2.0 * depth))
        .with("*attention.output.weight", normal(width))
        .with("*feed_forward.up.weight", normal(2.0 * width))
        .with("*feed_forward.down.weight", normal(width * 2.0 * depth)))
}
