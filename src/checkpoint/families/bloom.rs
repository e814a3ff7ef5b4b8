//! BLOOM: decoder with linear position biases (ALiBi), and query, key and value fused head by head.
//!
//! transformers' `BloomBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bloom/modeling_bloom.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("bloom", &["bloom"], config)
        .prefixes(&["transformer.", ""])
        .block("h.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["input_layernorm"]),
            Rule::linear("attention.output", &["self_attention.dense"]),
            Rule::norm("feed_forward_norm", &["post_attention_layernorm"]),
            Rule::linear("feed_forward.up", &["mlp.dense_h_to_4h"]),
            Rule::linear("feed_forward.down", &["mlp.dense_4h_to_h"]),
        ])
        .block_rules(Rule::fused_attention(
            &["self_attention.query_key_value"],
            FusedLayout::PerHead,
        ))
        .block_rules(Rule::fused_attention(
            &["self_attention.qkv_proj"], // of GGUF files
            FusedLayout::Blocks,
        ))
        .stack_rules([Rule::norm("final_norm", &["ln_f"])])
        .decoder_embeddings_and_heads("word_embeddings", "classifier")
        .end_rules([Rule::norm(
            "embeddings.norm",
            &["word_embeddings_layernorm"],
        )])
        .embeddings(|json, stack| {
            let norm = stack.blocks[0].norm;
            Ok(token_embeddings(json, stack)?.with_norm(norm).into())
        })
        .outside(&["word_embeddings*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size", "n_embed"])?;
    let alibi = AlibiConfig::new(AlibiSlopes::Appended, 1.0, AlibiRounding::None);
    let attention = AttentionConfig::new(d_model, json.size(&["n_head", "num_attention_heads"])?)?
        .causal()
        .with_position(Position::Alibi(alibi))
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model).with_activation(Activation::GeluTanh);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_epsilon"], 1e-5)?);
    let mut block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_residual_dropout(json.number(&["hidden_dropout"], 0.0)?);
    if json.flag(&["apply_residual_connection_post_layernorm"], false)? {
        block.residual.source = ResidualSource::Normalized;
    }
    let n_blocks = json.n_blocks(&["n_layer", "num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}
