//! ViT, DeiT, ViT-MSN and I-JEPA: pre-norm encoders for image patches, with BERT's names.
//!
//! transformers' `ViTLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/vit/modeling_vit.py>

use super::{bert::block, patches, prelude::*};

pub(super) fn families() -> Vec<Family> {
    let vit = blocks("vit", &["vit.", "deit.", ""])
        .end_rules([
            Rule::linear("pooler.transform", &["pooler.dense"]),
            Rule::linear(
                "image_classification.output",
                &["classifier", "cls_classifier"],
            ),
            Rule::linear(
                "image_classification.second_output",
                &["distillation_classifier"],
            ),
        ])
        .new_names(|json| {
            Ok(match (is_deit(json)?, has_teacher(json)?) {
                (true, true) => &["deit.embeddings.*", "cls_classifier.*"],
                (true, false) => &["deit.embeddings.*"],
                (false, _) => &[],
            })
        })
        .embeddings(embeddings)
        .pooler(pooler)
        .head(HeadTask::ImageClassification, image_classification);
    let classifier = || Rule::linear("image_classification.output", &["classifier"]);
    // Beside a head, transformers 5 adds this prefix to all names except those in blocks.
    let prefixed = |names: Vec<String>| names.iter().map(|name| format!("vit.{name}")).collect();
    let msn = blocks("vit_msn", &["vit.", ""])
        .stack_rules([Rule::norm("final_norm", &["vit.layernorm"])])
        .end_rules(patches::rules().map(|rule| Rule {
            weight: prefixed(rule.weight),
            bias: prefixed(rule.bias),
            ..rule
        }))
        .outside(&["vit.embeddings.*"])
        .end_rules([classifier()])
        .embeddings(|json, stack| Ok(EmbeddingsConfig::Patches(patches(json, stack)?)))
        .head(HeadTask::ImageClassification, |json, _| {
            Ok(ReadoutConfig::new(TokenSelection::First).with_output(labels(json)?))
        })
        .initialization(|json| {
            Ok(initializer_range::normal(json)?
                .with("embeddings.class_token.weight", Distribution::Constant(0.0))
                .with("embeddings.position.weight", Distribution::Constant(0.0)))
        });
    let ijepa = blocks("ijepa", &["ijepa.", ""])
        .end_rules([classifier()])
        .end_rules([Rule::linear("pooler.transform", &["pooler.dense"])])
        .embeddings(|json, stack| {
            Ok(EmbeddingsConfig::Patches(PatchEmbeddingsConfig {
                class_token: false,
                ..patches(json, stack)?
            }))
        })
        .pooler(pooler)
        .head(HeadTask::ImageClassification, |json, _| {
            Ok(ReadoutConfig::new(TokenSelection::Mean).with_output(labels(json)?))
        });
    vec![
        Family {
            model_types: strings(&["vit", "deit"]),
            ..vit
        },
        msn,
        ijepa,
    ]
}

/// The table for blocks and patch embeddings.
pub(super) fn blocks(name: &str, prefixes: &[&str]) -> Family {
    Family::new(name, &[name], config)
        .prefixes(prefixes)
        .block("encoder.layer.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["layernorm_before"]),
            Rule::linear("attention.query", &["attention.attention.query"]),
            Rule::linear("attention.key", &["attention.attention.key"]),
            Rule::linear("attention.value", &["attention.attention.value"]),
            Rule::linear("attention.output", &["attention.output.dense"]),
            Rule::norm("feed_forward_norm", &["layernorm_after"]),
            Rule::linear("feed_forward.up", &["intermediate.dense"]),
            Rule::linear("feed_forward.down", &["output.dense"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["layernorm"])])
        .end_rules(patches::rules())
        .ignored(&["*embeddings.mask_token"]) // for pretraining alone
        .outside(&["embeddings.*", "pooler.*", "*classifier.*", "decoder.*"])
}

pub(super) fn config(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json)?;
    let (n_heads, dropout) = (block.attention()?.n_heads, block.attention()?.dropout);
    *block.attention_mut()? = attention_of(json, block.d_model(), n_heads)?.with_dropout(dropout);
    block.attention_mut()?.bias = AttentionBias::new(json.flag(&["qkv_bias"], true)?, true);
    block.attention_placement = NormPlacement::Pre;
    block.feed_forward_placement = NormPlacement::Pre;
    let (n_blocks, norm) = (json.n_blocks(&["num_hidden_layers"])?, block.norm);
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    Ok(EmbeddingsConfig::Patches(PatchEmbeddingsConfig {
        distillation_token: is_deit(json)?,
        ..patches(json, stack)?
    }))
}

fn patches(json: &ConfigJson, stack: &StackConfig) -> Result<PatchEmbeddingsConfig> {
    Ok(PatchEmbeddingsConfig {
        dropout: json.number(&["hidden_dropout_prob"], 0.0)?,
        ..patches::config(json, stack.blocks[0].d_model(), [224, 16])?
    })
}

fn is_deit(json: &ConfigJson) -> Result<bool> {
    Ok(json.text(&["model_type"])?.as_deref() == Some("deit"))
}

fn has_teacher(json: &ConfigJson) -> Result<bool> {
    let classes = json.texts(&["architectures"])?.unwrap_or_default();
    Ok(classes.iter().any(|class| class.ends_with("WithTeacher")))
}

fn pooler(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let width = json.width_or(&["pooler_output_size"], stack.blocks[0].d_model())?;
    let activation = json.activation(&["pooler_act"], Activation::Tanh)?;
    Ok(ReadoutConfig::new(TokenSelection::First)
        .with_transform(TransformConfig::new(width, activation)))
}

/// Returns the image classification head on the first token. DeiT's distilled models also have a head on the distillation
/// token.
fn image_classification(json: &ConfigJson, _: &StackConfig) -> Result<ReadoutConfig> {
    let reads = match has_teacher(json)? {
        true => TokenSelection::FirstTwo,
        false => TokenSelection::First,
    };
    Ok(ReadoutConfig::new(reads).with_output(labels(json)?))
}
