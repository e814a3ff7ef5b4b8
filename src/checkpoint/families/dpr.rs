//! DPR: BERT whose first token represents a question or a passage.
//!
//! transformers' `DPREncoder`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/dpr/modeling_dpr.py>

use super::bert;
use super::encoder::embedding_rules;
use super::prelude::*;

pub(super) fn family() -> Family {
    bert::encoder("dpr", "question_encoder.bert_model.")
        .prefixes(&["question_encoder.bert_model.", "ctx_encoder.bert_model."])
        .without_embeddings_and_heads()
        .end_rules(embedding_rules())
        .end_rules([Rule::linear(
            "pooler.transform",
            &["question_encoder.encode_proj", "ctx_encoder.encode_proj"],
        )])
        .embeddings(|json, stack| bert::embeddings(json, stack, ALL_POSITIONS))
        .pooler(|json, _| {
            let first = ReadoutConfig::new(TokenSelection::First);
            Ok(match json.size_or(&["projection_dim"], 0)? {
                0 => first,
                width => first.with_transform(TransformConfig::new(width, Activation::Identity)),
            })
        })
        .new_names(|json| {
            let classes = json.texts(&["architectures"])?.unwrap_or_default();
            let is_context = classes.iter().any(|class| class == "DPRContextEncoder");
            Ok(match is_context {
                true => &["ctx_encoder.*"],
                false => &[],
            })
        })
        .outside(&[
            "question_encoder.encode_proj.*",
            "ctx_encoder.encode_proj.*",
        ])
}
