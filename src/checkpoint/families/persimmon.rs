//! Persimmon: GPT-NeoX's fused projections and feed-forward in sequence, squared ReLU, and query and key norms.
//!
//! transformers' `PersimmonDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/persimmon/modeling_persimmon.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("persimmon", &["persimmon"], config)
        .prefixes(&["model.", ""])
        .block("layers.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["input_layernorm"]),
            Rule::linear("attention.output", &["self_attn.dense"]),
            Rule::norm("attention.query_norm", &["self_attn.q_layernorm"]),
            Rule::norm("attention.key_norm", &["self_attn.k_layernorm"]),
            Rule::norm("feed_forward_norm", &["post_attention_layernorm"]),
            Rule::linear("feed_forward.up", &["mlp.dense_h_to_4h"]),
            Rule::linear("feed_forward.down", &["mlp.dense_4h_to_h"]),
        ])
        .block_rules(Rule::fused_attention(
            &["self_attn.query_key_value"],
            FusedLayout::PerHead,
        ))
        .stack_rules([Rule::norm("final_norm", &["final_layernorm"])])
        .decoder_embeddings_and_heads("embed_tokens", "score")
        .embeddings(|json, stack| Ok(padded_token_embeddings(json, stack)?.into()))
        .outside(&["embed_tokens.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-5)?);
    let mut attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .causal()
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let rotary = json.partial_rotary(attention.head_dim, 0.5, 10000.0)?;
    attention.position = Position::Rotary(rotary);
    if json.flag(&["qk_layernorm"], true)? {
        attention.query_key_norm = Some(QueryKeyNorm::new(norm, QueryKeyNormSpan::Head));
    }
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::Relu2)?);
    let mut block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
    block.residual.feed_forward_dropout = json.number(&["hidden_dropout"], 0.0)?; // no dropout after the attention
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}
