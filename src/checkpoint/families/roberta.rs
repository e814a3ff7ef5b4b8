//! RoBERTa, XLM-R, CamemBERT and data2vec's text model: BERT's blocks; positions are counted without the padding.
//!
//! transformers' `RobertaModel`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/roberta/modeling_roberta.py>

use super::bert::{embeddings, encoder};
use super::encoder::*;
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    vec![
        family("roberta", "roberta."),
        family("xlm-roberta", "roberta."),
        family("camembert", "roberta."),
        family("data2vec-text", "data2vec_text."),
    ]
}

pub(super) fn family(name: &str, prefix: &str) -> Family {
    encoder(name, prefix)
        .end_rules(word_rules([
            "lm_head.dense",
            "lm_head.layer_norm",
            "lm_head",
        ]))
        .end_rules(first_token_rules())
        .embeddings(|json, stack| {
            let padding = json.size_or(&["pad_token_id"], 1)?;
            embeddings(json, stack, positions_except(padding))
        })
        .pooler(|_, stack| Ok(first_through_tanh(stack)))
        .head(HeadTask::MaskedLm, word_by_gelu)
        .head(HeadTask::CausalLm, word_by_gelu)
        .head(HeadTask::SequenceClassification, |json, stack| {
            first_token(json, stack, Activation::Tanh, classifier_dropout(json)?)
        })
        .head(HeadTask::MultipleChoice, |json, _| {
            Ok(choice(hidden_dropout(json)?))
        })
}
