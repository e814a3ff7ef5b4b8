//! BERT for generation: BERT's blocks and embeddings without token types; a decoder has a plain head.
//!
//! transformers' `BertGenerationDecoder`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bert_generation/modeling_bert_generation.py>

use super::bert::encoder;
use super::encoder::{embedding_rules, hidden_dropout};
use super::prelude::*;

pub(super) fn family() -> Family {
    encoder("bert-generation", "bert.")
        .without_embeddings_and_heads()
        .end_rules(embedding_rules())
        .end_rules([Rule::named(
            "causal_lm.output",
            &["lm_head.decoder.weight"],
            &["lm_head.decoder.bias", "lm_head.bias"],
        )])
        .embeddings(|json, stack| {
            let embeddings = padded_token_embeddings(json, stack)?
                .with_positions(json.size(&["max_position_embeddings"])?)
                .with_norm(stack.blocks[0].norm)
                .with_dropout(hidden_dropout(json)?);
            Ok(embeddings.into())
        })
        .head(HeadTask::CausalLm, |json, _| {
            next_token(language_model(json)?.with_bias(true))
        })
}
