//! StarCoder 2: Llama's names with LayerNorm, biases and an ungated feed-forward.
//!
//! transformers' `Starcoder2DecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/starcoder2/modeling_starcoder2.py>

use super::llama::{block, decoder, uniform};
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("starcoder2", config)
        .block_rules([
            Rule::linear("feed_forward.up", &["mlp.c_fc"]),
            Rule::linear("feed_forward.down", &["mlp.c_proj"]),
        ])
        .embeddings(|json, stack| {
            let dropout = json.number(&["embedding_dropout"], 0.0)?;
            Ok(padded_token_embeddings(json, stack)?
                .with_dropout(dropout)
                .into())
        })
        .initialization(initialization)
        .new_names(|_| Ok(&["*.c_fc.*", "*.c_proj.*"]))
}

fn initialization(json: &ConfigJson) -> Result<Initialization> {
    Ok(Initialization::normal(initializer_range::deviation(
        json, 0.018042,
    )?))
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let has_bias = json.flag(&["use_bias"], true)?;
    let mut block = block(json, AttentionBias::new(has_bias, has_bias))?
        .with_residual_dropout(json.number(&["residual_dropout"], 0.0)?);
    let eps = json.number(&["norm_epsilon", "layer_norm_eps"], 1e-5)?;
    block.norm = NormConfig::layer_norm(block.d_model(), eps);
    block.attention_mut()?.window = json.optional_size(&["sliding_window"])?;
    block.feed_forward = block
        .feed_forward
        .with_form(FeedForwardForm::Plain)
        .with_activation(json.activation(&["hidden_act"], Activation::GeluTanh)?)
        .with_bias(has_bias);
    uniform(json, block)
}
