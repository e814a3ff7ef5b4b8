//! CLIP and MetaCLIP 2: a text tower and a vision tower with pre-norm blocks.
//!
//! transformers' `CLIPEncoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/clip/modeling_clip.py>

use super::patches;
use super::prelude::*;
use super::tower::{Tower, tower};

pub(super) fn families() -> Vec<Family> {
    let meta = |json: &ConfigJson, _: &StackConfig| {
        let end = TEXT.section(json)?.size_or(&["eos_token_id"], 49407)?;
        Ok(ReadoutConfig::new(TokenSelection::FirstOf(end as u32)))
    };
    [towers("clip", end_of_text), towers("metaclip_2", meta)].concat()
}

/// Returns both towers; `end` selects the position at which a text is pooled.
pub(super) fn towers(name: &str, end: ReadReadout) -> [Family; 2] {
    let types = |tower: &str| [name.to_string(), format!("{name}_{tower}_model")];
    let family = |tower, config| Family {
        model_types: types(tower).into(),
        ..Family::new(name, &[], config)
    };
    [
        tower(
            family("text", |json| TEXT.config(json))
                .initialization(|json| initialization(json, &TEXT))
                .embeddings(|json, stack| TEXT.token_embeddings(json, stack, [49408, 77]))
                .end_rules([Rule::linear("projection.output", &["text_projection"])])
                .end_rules([Rule::named("similarity", &["logit_scale"], &[])])
                .pooler(end)
                .joined(StackPart::Vision, |_| {
                    Ok(TwoStackKind::TwoTowers { bias: false })
                }),
            StackPart::Text,
        ),
        tower(
            family("vision", vision)
                .initialization(|json| initialization(json, &VISION))
                .embeddings(|json, stack| images(json, stack, [224, 32]))
                .end_rules([Rule::linear("projection.output", &["visual_projection"])])
                .pooler(first_normed)
                .head(HeadTask::ImageClassification, |json, _| {
                    Ok(ReadoutConfig::new(TokenSelection::MeanAfter(1)).with_output(labels(json)?))
                }),
            StackPart::Vision,
        ),
    ]
    .map(|family| family.head(HeadTask::Projection, projection))
}

pub(super) const TEXT: Tower = Tower {
    section: "text_config",
    visibility: Visibility::Causal,
    activation: Activation::QuickGelu,
    eps: 1e-5,
    width: 512,
};
pub(super) const VISION: Tower = Tower {
    section: "vision_config",
    visibility: Visibility::Bidirectional,
    width: 768,
    ..TEXT
};

fn vision(json: &ConfigJson) -> Result<StackConfig> {
    // The last norm only applies to the pooled output.
    Ok(StackConfig {
        final_norm: None,
        ..VISION.config(json)?
    })
}

/// Pools a text at its end. Files from before 2023 have a wrong id for the end token, which has the highest id.
pub(super) fn end_of_text(json: &ConfigJson, _: &StackConfig) -> Result<ReadoutConfig> {
    let end = TEXT.section(json)?.size_or(&["eos_token_id"], 49407)?;
    Ok(ReadoutConfig::new(match end {
        2 => TokenSelection::Highest,
        end => TokenSelection::FirstOf(end as u32),
    }))
}

/// Returns patch embeddings with a norm; `sizes` are the default ones of an image and a patch.
pub(super) fn images(
    json: &ConfigJson,
    stack: &StackConfig,
    sizes: [usize; 2],
) -> Result<EmbeddingsConfig> {
    let patches = patches::config(&VISION.section(json)?, stack.blocks[0].d_model(), sizes)?;
    Ok(EmbeddingsConfig::Patches(PatchEmbeddingsConfig {
        bias: false,
        norm: Some(stack.blocks[0].norm),
        ..patches
    }))
}

pub(super) fn first_normed(_: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let norm = TransformConfig::norm(stack.blocks[0].norm);
    Ok(ReadoutConfig::new(TokenSelection::First).with_transform(norm))
}

/// Projects into the embedding space that texts and images share.
fn projection(json: &ConfigJson, _: &StackConfig) -> Result<ReadoutConfig> {
    let output = OutputConfig::new(json.width_or(&["projection_dim"], 512)?);
    Ok(ReadoutConfig::new(TokenSelection::Pooled).with_output(output))
}

/// Initializes layers before a residual addition with smaller values, depending on the tower's depth.
fn initialization(json: &ConfigJson, tower: &Tower) -> Result<Initialization> {
    let stack = tower.config(json)?;
    let section = tower.section(json)?;
    let factor = section.number(&["initializer_factor"], 1.0)?;
    let outer_factor = json.number(&["initializer_factor"], 1.0)?;
    let embeddings = factor * section.number(&["initializer_range"], 0.02)?;
    let similarity = json.number(&["logit_scale_init_value"], 2.6592)?;
    let width = stack.blocks[0].d_model() as f64;
    let output = Distribution::Normal {
        deviation: outer_factor / width.sqrt(),
    };
    let depth = stack.blocks.len() as f64;
    let normal = |by: f64| Distribution::Normal {
        deviation: factor / by.sqrt(),
    };
    Ok(Initialization::normal(0.02)
        .with("*attention.*.weight", normal(width * 2.0 * depth))
        .with("*attention.output.weight", normal(width))
        .with("*feed_forward.up.weight", normal(2.0 * width))
        .with("*feed_forward.down.weight", normal(width * 2.0 * depth))
        .with(
            "embeddings.*.weight",
            Distribution::Normal {
                deviation: embeddings,
            },
        )
        .with("embeddings.class_token.weight", normal(width))
        .with("embeddings.norm.weight", Distribution::Layer)
        .with("projection.output.weight", output)
        .with("image_classification.output.weight", output)
        .with("similarity.weight", Distribution::Constant(similarity)))
}
