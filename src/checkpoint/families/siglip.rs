//! SigLIP: CLIP's two towers with other settings.
//!
//! transformers' `SiglipEncoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/siglip/modeling_siglip.py>

use super::patches;
use super::prelude::*;
use super::tower::{Tower, tower};

pub(super) fn families() -> Vec<Family> {
    vec![
        text("siglip", &["siglip", "siglip_text_model"]),
        vision("siglip", &["siglip", "siglip_vision_model"])
            .embeddings(|json, stack| Ok(EmbeddingsConfig::Patches(of_images(json, stack)?))),
    ]
}

/// The vision tower.
pub(super) fn vision(name: &str, model_types: &[&str]) -> Family {
    let family = Family::new(name, model_types, |json| VISION.config(json))
        .initialization(|json| initialization(json, &VISION))
        .end_rules(attention_pool())
        .pooler(attended)
        .new_names(|_| Ok(&["*post_layernorm.*"]))
        .head(HeadTask::ImageClassification, |json, _| {
            Ok(ReadoutConfig::new(TokenSelection::Mean).with_output(labels(json)?))
        });
    tower(family, StackPart::Vision)
}

pub(super) fn of_images(json: &ConfigJson, stack: &StackConfig) -> Result<PatchEmbeddingsConfig> {
    let width = stack.blocks[0].d_model();
    Ok(PatchEmbeddingsConfig {
        class_token: false,
        ..patches::config(&VISION.section(json)?, width, [224, 16])?
    })
}

/// The text tower.
pub(super) fn text(name: &str, model_types: &[&str]) -> Family {
    let family = Family::new(name, model_types, |json| TEXT.config(json))
        .initialization(|json| initialization(json, &TEXT))
        .embeddings(|json, stack| TEXT.token_embeddings(json, stack, [32000, 64]))
        .end_rules([
            Rule::linear("pooler.transform", &["head"]),
            Rule {
                bias: strings(&["logit_bias"]),
                ..Rule::with_leading_ones("similarity", &["logit_scale"], 1)
            },
        ])
        .pooler(last_token)
        .joined(StackPart::Vision, |_| {
            Ok(TwoStackKind::TwoTowers { bias: true })
        });
    tower(family, StackPart::Text)
}

const TEXT: Tower = Tower {
    section: "text_config",
    visibility: Visibility::Bidirectional,
    activation: Activation::GeluTanh,
    eps: 1e-6,
    width: 768,
};
pub(super) const VISION: Tower = Tower {
    section: "vision_config",
    ..TEXT
};

/// Pools the last token, which may be padding: texts are padded to one length.
fn last_token(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let width = TEXT.section(json)?;
    let width = width.size_or(&["projection_size"], stack.blocks[0].d_model())?;
    let transform = TransformConfig::new(width, Activation::Identity);
    Ok(ReadoutConfig::new(TokenSelection::Last).with_transform(transform))
}

/// Pools all patches by attention with a learned query.
fn attended(_: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let block = &stack.blocks[0];
    Ok(ReadoutConfig::new(TokenSelection::Attended(Box::new(
        AttentionPoolConfig {
            attention: AttentionConfig {
                dropout: 0.0,
                ..block.attention()?.clone()
            },
            norm: block.norm,
            feed_forward: block.feed_forward.clone(),
        },
    ))))
}

fn attention_pool() -> Vec<Rule> {
    let of = |part: &str| format!("pooler.pool.{part}");
    let fused = |part: &str, projection| {
        let names = [
            ["head.attention.in_proj_weight"],
            ["head.attention.in_proj_bias"],
        ];
        Rule::named(&of(&format!("attention.{part}")), &names[0], &names[1])
            .part(Part::Fused(FusedLayout::Blocks, projection))
    };
    vec![
        Rule::with_leading_ones(&of("probe"), &["head.probe"], 2),
        fused("query", Projection::Query),
        fused("key", Projection::Key),
        fused("value", Projection::Value),
        Rule::linear(&of("attention.output"), &["head.attention.out_proj"]),
        Rule::norm(&of("norm"), &["head.layernorm"]),
        Rule::linear(&of("feed_forward.up"), &["head.mlp.fc1"]),
        Rule::linear(&of("feed_forward.down"), &["head.mlp.fc2"]),
    ]
}

/// Returns Xavier's uniform distribution for most layers, and LeCun's normal one for SigLIP's own layers.
fn initialization(json: &ConfigJson, tower: &Tower) -> Result<Initialization> {
    let block = &tower.config(json)?.blocks[0];
    let section = tower.section(json)?;
    let (width, d_ff) = (block.d_model() as f64, block.feed_forward.d_ff as f64);
    let xavier = |d_in: f64, d_out: f64| Distribution::Uniform {
        bound: (6.0 / (d_in + d_out)).sqrt(),
    };
    let normal = |deviation: f64| Distribution::Normal { deviation };
    let lecun = |d_in: f64| Distribution::TruncatedNormal {
        // The standard deviation before truncation at two deviations is larger than after it.
        deviation: 1.0 / d_in.sqrt() / 0.879_625_661_034_239_8,
        cut: 2.0,
    };
    let patch = section.size_or(&["patch_size"], 16)? as f64;
    let pixels = patch * patch * section.size_or(&["num_channels"], 3)? as f64;
    let factor = json.number(&["initializer_factor"], 1.0)?;
    let in_pool = xavier(width, 3.0 * width); // query, key and value are one matrix
    Ok(Initialization::normal(0.02)
        .with("*attention.*.weight", xavier(width, width))
        .with("*feed_forward.*.weight", xavier(width, d_ff))
        .with("*feed_forward.*.bias", normal(1e-6))
        .with("embeddings.*.weight", normal(width.powf(-0.5)))
        .with("embeddings.patch.weight", lecun(pixels))
        .with("pooler.transform.weight", lecun(width))
        .with("pooler.pool.probe.weight", xavier(width, width))
        .with("pooler.pool.attention.*.weight", in_pool)
        .with("pooler.pool.attention.output.weight", lecun(width))
        .with(
            "image_classification.output.weight",
            normal(factor * width.powf(-0.5)),
        )
        .with("similarity.weight", Distribution::Constant(0.0)))
}
