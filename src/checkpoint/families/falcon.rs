//! Falcon: its 7B variant (parallel, one key/value head), its 40B variant (grouped heads, one or two norms), and the RW
//! variant (sequential, ALiBi).
//!
//! transformers' `FalconDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/falcon/modeling_falcon.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new(
        "falcon",
        &["falcon", "RefinedWeb", "RefinedWebModel"],
        config,
    )
    .prefixes(&["transformer.", ""])
    .block("h.{i}.")
    .block_rules([
        Rule::norm("attention_norm", &["ln_attn", "input_layernorm"]),
        Rule::linear("attention.output", &["self_attention.dense"]),
        Rule::norm("feed_forward_norm", &["ln_mlp", "post_attention_layernorm"]),
        Rule::linear("feed_forward.up", &["mlp.dense_h_to_4h"]),
        Rule::linear("feed_forward.down", &["mlp.dense_4h_to_h"]),
    ])
    // One group with all queries (7B), several groups (40B), or one group for each head (RW).
    .block_rules(Rule::fused_attention(
        &["self_attention.query_key_value"],
        FusedLayout::PerGroup,
    ))
    .block_rules(Rule::fused_attention(
        &["self_attention.qkv_proj"], // of GGUF files
        FusedLayout::Blocks,
    ))
    .stack_rules([Rule::norm("final_norm", &["ln_f"])])
    .new_names(|json| {
        let is_grouped = json.flag(&["new_decoder_architecture"], false)?;
        match is_grouped && json.size_or(&["num_ln_in_parallel_attn"], 2)? == 2 {
            true => Ok(&["*.ln_attn.*", "*.ln_mlp.*"]),
            false => Ok(&["*.input_layernorm.*", "*.post_attention_layernorm.*"]),
        }
    })
    .decoder_embeddings_and_heads("word_embeddings", "classifier")
    .outside(&["word_embeddings.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let n_heads = json.size(&["num_attention_heads", "n_head"])?;
    let is_grouped = json.flag(&["new_decoder_architecture"], false)?;
    let n_kv_heads = match (is_grouped, json.flag(&["multi_query"], true)?) {
        (true, _) => json.size_or(&["num_kv_heads", "n_head_kv"], n_heads)?,
        (false, true) => 1,
        (false, false) => n_heads,
    };
    let has_bias = json.flag(&["bias"], false)?;
    let attention = AttentionConfig::new(d_model, n_heads)?;
    let attention_dropout = json.number(&["attention_dropout"], 0.0)?;
    let hidden_dropout = json.number(&["hidden_dropout"], 0.0)?;
    let (position, probability_dropout) = match json.flag(&["alibi"], false)? {
        // The bias is scaled together with the scores.
        true => {
            let alibi =
                AlibiConfig::new(AlibiSlopes::Appended, attention.scale, AlibiRounding::Bf16);
            (Position::Alibi(alibi), attention_dropout)
        }
        // transformers does not apply attention dropout here either.
        false => {
            let rotary = json.rotary(attention.head_dim, 10000.0)?;
            (Position::Rotary(rotary), 0.0)
        }
    };
    let attention = attention
        .with_kv_heads(n_kv_heads)
        .causal()
        .with_position(position)
        .with_bias(AttentionBias::new(has_bias, has_bias))
        .with_dropout(probability_dropout);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size_or(&["ffn_hidden_size"], 4 * d_model)?)
        .with_activation(json.activation(&["activation"], Activation::Gelu)?)
        .with_bias(has_bias);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_epsilon"], 1e-5)?);
    let n_norms = json.optional_size(&["num_ln_in_parallel_attn"])?;
    let topology = match (
        is_grouped || json.flag(&["parallel_attn"], true)?,
        is_grouped,
    ) {
        (true, true) if n_norms.unwrap_or(2) == 2 => Topology::Parallel(ParallelNorm::Separate),
        (true, _) => Topology::Parallel(ParallelNorm::Shared),
        (false, _) => Topology::Sequential,
    };
    let mut block =
        BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre).with_topology(topology);
    match topology {
        Topology::Sequential => {
            block.residual.attention_dropout = attention_dropout;
            block.residual.feed_forward_dropout = hidden_dropout;
        }
        _ if hidden_dropout != 0.0 => {
            block.own = OwnConfig::Falcon {
                parallel_dropout: hidden_dropout,
            };
        }
        _ => {}
    }
    let n_blocks = json.n_blocks(&["num_hidden_layers", "n_layer"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}
