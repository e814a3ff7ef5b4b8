//! RoFormer: BERT's blocks with rotary embeddings.
//!
//! transformers' `RoFormerSelfAttention`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/roformer/modeling_roformer.py>

use super::bert::{self, encoder};
use super::encoder::*;
use super::prelude::*;

pub(super) fn family() -> Family {
    encoder("roformer", "roformer.")
        .read_by(config)
        .end_rules(word_rules([
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions",
        ]))
        .end_rules(first_token_rules())
        .end_rules([Rule::linear(
            "embeddings.projection",
            &["embeddings_project"],
        )])
        .embeddings(|json, stack| {
            Ok(bert::typed_token_embeddings(json, stack, width(json, stack)?)?.into())
        })
        .head(HeadTask::MaskedLm, masked_lm)
        .head(HeadTask::CausalLm, masked_lm)
        .head(HeadTask::SequenceClassification, |json, stack| {
            first_token(json, stack, activation(json)?, hidden_dropout(json)?)
        })
        .head(HeadTask::TokenClassification, token_of_encoder)
        .ignored(&["*embed_positions.weight"]) // sinusoidal positions
        .outside(&["*embeddings_project.*"])
}

fn width(json: &ConfigJson, stack: &StackConfig) -> Result<usize> {
    json.size_or(&["embedding_size"], stack.blocks[0].d_model())
}

fn activation(json: &ConfigJson) -> Result<Activation> {
    json.activation(&["hidden_act"], Activation::Gelu)
}

fn masked_lm(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    word(json, stack, width(json, stack)?, activation(json)?)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("rotary_value", &[json!(false)])?;
    Ok(bert::config(json)?.with_each_attention(|_, attention| {
        let rotary = RotaryConfig::new(attention.head_dim, 10000.0);
        let rotary = rotary.with_pairing(RotaryPairing::Interleaved);
        attention.position = Position::Rotary(rotary);
    }))
}
