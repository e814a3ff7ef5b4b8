//! Megatron-BERT: BERT with the norm in front of each sublayer, and none behind the embeddings.
//!
//! transformers' `MegatronBertLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/megatron_bert/modeling_megatron_bert.py>

use super::bert;
use super::encoder::pooled;
use super::prelude::*;

pub(super) fn family() -> Family {
    bert::family()
        .named("megatron-bert")
        .read_by(|json| Ok(bert::norm_first(bert::config(json)?)))
        .replace_block_rules([
            Rule::norm("attention_norm", &["attention.ln"]),
            Rule::norm("feed_forward_norm", &["ln"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["encoder.ln"])])
        .embeddings(|json, stack| {
            let words = padded_words(json, stack)?
                .with_positions(json.size(&["max_position_embeddings"])?)
                .with_types(json.size_or(&["type_vocab_size"], 2)?);
            Ok(words.with_dropout(dropout(json)?).into())
        })
        .head(Task::SequenceClassification, |json, _| {
            pooled(json, dropout(json)?)
        })
        .head(Task::TokenClassification, |json, _| {
            token(json, dropout(json)?)
        })
}

fn dropout(json: &ConfigJson) -> Result<f64> {
    json.number(&["hidden_dropout_prob"], 0.1)
}
