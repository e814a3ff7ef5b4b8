//! RemBERT: BERT's blocks with narrow token embeddings, and a head with wide ones of its own.
//!
//! transformers' `RemBertModel`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/rembert/modeling_rembert.py>

use super::bert;
use super::encoder::{first_through_tanh, pooled, word, word_rules};
use super::prelude::*;

pub(super) fn family() -> Family {
    bert::encoder("rembert", "rembert.")
        .end_rules([Rule::linear(
            "embeddings.projection",
            &["encoder.embedding_hidden_mapping_in"],
        )])
        .end_rules(word_rules([
            "cls.predictions.dense",
            "cls.predictions.LayerNorm",
            "cls.predictions",
        ]))
        .end_rules([Rule::linear(
            "sequence_classification.output",
            &["classifier"],
        )])
        .embeddings(|json, stack| {
            let width = json.size_or(&["input_embedding_size"], 256)?;
            let n_positions = json.size(&["max_position_embeddings"])?;
            Ok(bert::typed_token_embeddings(json, stack, width)?
                .with_positions(n_positions)
                .with_projection(EmbeddingProjection {
                    of: Projected::Sum,
                    bias: true,
                })
                .into())
        })
        .pooler(|_, stack| Ok(first_through_tanh(stack)))
        .head(HeadTask::MaskedLm, words_of_its_own)
        .head(HeadTask::CausalLm, words_of_its_own)
        .head(HeadTask::SequenceClassification, |json, _| {
            pooled(json, dropout(json)?)
        })
        .head(HeadTask::TokenClassification, |json, _| {
            token(json, dropout(json)?)
        })
        .new_names(|_| Ok(&[]))
        .outside(&["encoder.embedding_hidden_mapping_in.*"])
}

fn dropout(json: &ConfigJson) -> Result<f64> {
    json.number(&["classifier_dropout_prob"], 0.1)
}

/// Returns a head that is never tied, whatever the file says.
fn words_of_its_own(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let width = json.size_or(&["output_embedding_size"], 1664)?;
    let activation = json.activation(&["hidden_act"], Activation::Gelu)?;
    let output = OutputConfig::new(json.size(&["vocab_size"])?).with_bias(true);
    Ok(word(json, stack, width, activation)?.with_output(output))
}
