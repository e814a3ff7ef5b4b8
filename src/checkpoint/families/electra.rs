//! ELECTRA: BERT's blocks with narrower token embeddings; a generator, or a discriminator that detects replaced tokens.
//!
//! transformers' `ElectraForPreTraining`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/electra/modeling_electra.py>

use super::bert::{encoder, typed_token_embeddings};
use super::encoder::*;
use super::prelude::*;

pub(super) fn family() -> Family {
    encoder("electra", "electra.")
        .end_rules(word_rules([
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
        ]))
        .end_rules(first_token_rules())
        .end_rules([
            Rule::linear("embeddings.projection", &["embeddings_project"]),
            Rule::linear(
                "replaced_tokens.transform",
                &["discriminator_predictions.dense"],
            ),
            Rule::linear(
                "replaced_tokens.output",
                &["discriminator_predictions.dense_prediction"],
            ),
        ])
        .embeddings(embeddings)
        .head(HeadTask::MaskedLm, generated)
        .head(HeadTask::CausalLm, generated)
        .head(HeadTask::SequenceClassification, |json, stack| {
            first_token(json, stack, Activation::Gelu, classifier_dropout(json)?)
        })
        .head(HeadTask::ReplacedTokens, replaced_tokens)
        .new_names(|_| Ok(&["generator_lm_head.weight", "generator_lm_head.bias"]))
        .outside(&["*embeddings_project.*", "*predictions.*"])
        .outside(&["generator_lm_head.*", "*summary.*"])
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let positions = PositionTableConfig {
        n_rows: json.size(&["max_position_embeddings"])?,
        ..ALL_POSITIONS
    };
    let embeddings = typed_token_embeddings(json, stack, width(json, stack)?)?;
    Ok(embeddings.with_position_table(positions).into())
}

fn generated(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    word(json, stack, width(json, stack)?, Activation::Gelu)
}

/// Returns the width of the token embeddings.
fn width(json: &ConfigJson, stack: &StackConfig) -> Result<usize> {
    json.size_or(&["embedding_size"], stack.blocks[0].d_model())
}

/// Returns the discriminator's head: one logit for each token, whether it was replaced.
fn replaced_tokens(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let activation = json.activation(&["hidden_act"], Activation::Gelu)?;
    let transform = TransformConfig::new(stack.blocks[0].d_model(), activation);
    Ok(ReadoutConfig::new(TokenSelection::Each)
        .with_transform(transform)
        .with_output(OutputConfig::number()))
}
