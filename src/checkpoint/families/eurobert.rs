//! EuroBERT: Llama's blocks with bidirectional attention.
//!
//! transformers' `EuroBertModel`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/eurobert/modeling_eurobert.py>

use super::llama;
use super::prelude::*;

pub(super) fn family() -> Family {
    llama::decoder("eurobert", |json| {
        let stack = llama::llama(json)?;
        Ok(stack
            .with_each_attention(|_, attention| attention.visibility = Visibility::Bidirectional))
    })
    .prefixes(&["model.", ""])
    .without_embeddings_and_heads()
    .end_rules([
        Rule::linear("embeddings.word", &["embed_tokens"]),
        Rule::linear("masked_lm.output", &["lm_head"]),
        Rule::linear("sequence_classification.transform", &["dense"]),
        Rule::linear("sequence_classification.output", &["classifier"]),
        Rule::linear("token_classification.output", &["classifier"]),
    ])
    .head(HeadTask::MaskedLm, |json, _| {
        let has_bias = json.flag(&["mlp_bias"], false)?;
        Ok(ReadoutConfig::new(TokenSelection::Each)
            .with_output(language_model(json)?.with_bias(has_bias)))
    })
    .head(HeadTask::SequenceClassification, |json, stack| {
        json.only(
            "classifier_pooling",
            &["bos", "mean", "late"].map(Value::from),
        )?;
        let reads = match json.text(&["classifier_pooling"])?.as_deref() {
            Some("bos") => TokenSelection::First,
            Some("mean") => TokenSelection::Mean,
            _ => TokenSelection::MeanTransformed,
        };
        let transform = TransformConfig::new(stack.blocks[0].d_model(), Activation::Gelu);
        Ok(ReadoutConfig::new(reads)
            .with_transform(transform)
            .with_output(labels(json)?))
    })
    .head(HeadTask::TokenClassification, |json, _| token(json, 0.0))
    .outside(&["dense.*"])
}
