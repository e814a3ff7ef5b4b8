//! DeBERTa: BERT's blocks with disentangled attention; query, key and value are one projection.
//!
//! transformers' `DebertaLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/deberta/modeling_deberta.py>

use super::bert;
use super::disentangled::{disentangled, distances};
use super::encoder::*;
use super::prelude::*;

pub(super) fn family() -> Family {
    let fused = |role, projection| {
        let part = Part::Fused(FusedLayout::PerHead, projection);
        Rule::named(role, &["attention.self.in_proj.weight"], &[]).part(part)
    };
    encoder("deberta", config)
        .replace_block_rules([
            fused("attention.query", Projection::Query),
            fused("attention.key", Projection::Key),
            fused("attention.value", Projection::Value),
        ])
        .block_rules([
            Rule::named("attention.query", &[], &["attention.self.q_bias"]),
            Rule::named("attention.value", &[], &["attention.self.v_bias"]),
            Rule::linear("attention.position_key", &["attention.self.pos_proj"]),
            Rule::linear("attention.position_query", &["attention.self.pos_q_proj"]),
        ])
}

/// The table for both versions, without the projections in their attention.
pub(super) fn encoder(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    bert::encoder(name, "deberta.")
        .read_by(config)
        .stack_rules([Rule::linear(
            "relative_embeddings",
            &["encoder.rel_embeddings"],
        )])
        .end_rules(word_rules([
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions",
        ]))
        .end_rules([
            Rule::linear("masked_lm.transform", &["lm_predictions.lm_head.dense"]),
            Rule::norm("masked_lm.norm", &["lm_predictions.lm_head.LayerNorm"]),
            Rule::named("masked_lm.output", &[], &["lm_predictions.lm_head.bias"]),
            Rule::linear("sequence_classification.transform", &["pooler.dense"]),
            Rule::linear("sequence_classification.output", &["classifier"]),
        ])
        .embeddings(embeddings)
        .head(HeadTask::MaskedLm, masked_lm)
        .head(HeadTask::SequenceClassification, |json, stack| {
            first(json, stack, labels(json)?)
        })
        .head(HeadTask::TokenClassification, token_of_encoder)
        .new_names(|json| match json.flag(&["legacy"], true)? {
            true => new_bias(json),
            false => Ok(&["lm_predictions.*"]),
        })
        .ignored(&["embeddings.position_embeddings.weight"]) // with `position_biased_input` false
        .outside(&[
            "lm_predictions.*",
            "mask_predictions.*",
            "encoder.rel_embeddings.*",
        ])
}

/// Returns a head on the first position, after a linear layer and an activation.
pub(super) fn first(
    json: &ConfigJson,
    stack: &StackConfig,
    output: OutputConfig,
) -> Result<ReadoutConfig> {
    let d_model = stack.blocks[0].d_model();
    json.only("pooler_hidden_size", &[json!(d_model)])?;
    let activation = json.activation(&["pooler_hidden_act"], Activation::Gelu)?;
    let dropout = json.number(&["cls_dropout"], hidden_dropout(json)?)?;
    Ok(ReadoutConfig::new(TokenSelection::First)
        .with_dropout(json.number(&["pooler_dropout"], 0.0)?)
        .with_transform(TransformConfig::new(d_model, activation))
        .with_output(output.with_dropout(dropout)))
}

/// Returns the masked language model's head. Without `legacy`, it is always tied to the token embeddings.
fn masked_lm(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let activation = json.activation(&["hidden_act"], Activation::Gelu)?;
    let mut read = word(json, stack, stack.blocks[0].d_model(), activation)?;
    if !json.flag(&["legacy"], true)?
        && let Some(output) = &mut read.output
    {
        output.weight = OutputWeight::Words;
    }
    Ok(read)
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    json.only("embedding_size", &[json!(stack.blocks[0].d_model())])?; // else projected before the norm
    let mut embeddings = padded_token_embeddings(json, stack)?
        .with_norm(stack.blocks[0].norm)
        .with_blank_padding(true)
        .with_dropout(hidden_dropout(json)?);
    if json.flag(&["position_biased_input"], true)? {
        embeddings = embeddings.with_positions(json.size_or(&["max_position_embeddings"], 512)?);
    }
    let n_types = json.optional_number(&["type_vocab_size"])?.unwrap_or(0.0);
    if n_types > 0.0 {
        embeddings = embeddings.with_types(n_types as usize);
    }
    Ok(embeddings.into())
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("talking_head", &[json!(false)])?;
    let own = PositionProjections::Own {
        key_bias: false,
        query_bias: true,
    };
    let stack = disentangled(json, DisentangledConfig::new(distances(json)?), own)?;
    Ok(stack.with_each_attention(|_, attention| attention.bias.key = false))
}
