//! Megatron-BERT: BERT as pre-norm, without a norm after the embeddings.
//!
//! transformers' `MegatronBertLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/megatron_bert/modeling_megatron_bert.py>

use super::bert;
use super::encoder::{hidden_dropout, pooled, token_of_encoder};
use super::prelude::*;

pub(super) fn family() -> Family {
    bert::table()
        .named("megatron-bert")
        .read_by(|json| Ok(bert::norm_first(bert::config(json)?)))
        .replace_block_rules([
            Rule::norm("attention_norm", &["attention.ln"]),
            Rule::norm("feed_forward_norm", &["ln"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["encoder.ln"])])
        .embeddings(|json, stack| {
            let embeddings = padded_token_embeddings(json, stack)?
                .with_positions(json.size(&["max_position_embeddings"])?)
                .with_types(json.size_or(&["type_vocab_size"], 2)?);
            Ok(embeddings.with_dropout(hidden_dropout(json)?).into())
        })
        .head(HeadTask::SequenceClassification, |json, _| {
            pooled(json, hidden_dropout(json)?)
        })
        .head(HeadTask::TokenClassification, token_of_encoder)
}
