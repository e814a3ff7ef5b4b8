//! GPT-NeoX and Pythia: parallel branches with a norm each, and query, key and value fused head by head. GPT-NeoX-Japanese
//! has sequential branches and a single bias.
//!
//! transformers' `GPTNeoXLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gpt_neox/modeling_gpt_neox.py>,
//! and `GPTNeoXJapaneseLayer`

use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let gpt_neox = table("gpt_neox", config)
        .prefixes(&["gpt_neox.", ""])
        .block_rules([Rule::linear("attention.output", &["attention.dense"])])
        .embeddings(|json, stack| {
            let dropout = json.number(&["hidden_dropout"], 0.0)?;
            Ok(token_embeddings(json, stack)?.with_dropout(dropout).into())
        });
    let output = Rule::named(
        "attention.output",
        &["attention.dense.weight"],
        &["attention.dense_bias"],
    );
    let japanese = table("gpt_neox_japanese", japanese)
        .prefixes(&["gpt_neox_japanese.", ""])
        .block_rules([output]);
    vec![gpt_neox, japanese]
}

fn table(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    Family::new(name, &[name], config)
        .block("layers.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["input_layernorm"]),
            Rule::norm("feed_forward_norm", &["post_attention_layernorm"]),
            Rule::linear("feed_forward.up", &["mlp.dense_h_to_4h"]),
            Rule::linear("feed_forward.down", &["mlp.dense_4h_to_h"]),
        ])
        .block_rules(Rule::fused_attention(
            &["attention.query_key_value"],
            FusedLayout::PerHead,
        ))
        .block_rules(Rule::fused_attention(
            &["attention.qkv_proj"], // of GGUF files
            FusedLayout::Blocks,
        ))
        .stack_rules([Rule::norm("final_norm", &["final_layer_norm"])])
        .decoder_embeddings_and_heads("embed_in", "classifier")
        .end_rules([Rule::linear("causal_lm.output", &["embed_out"])])
        .new_names(|_| Ok(&["embed_out.*"]))
        .ignored(&["*.attention.bias"])
        .outside(&["embed_in.*", "embed_out.*"])
}

/// Returns partial rotary embeddings. Besides `rope_parameters`, transformers reads only these two keys.
fn rotary(json: &ConfigJson, head_dim: usize, share: f64) -> Result<RotaryConfig> {
    let share = json.number(&["rotary_pct"], share)?;
    let base = ["rotary_emb_base"];
    let theta = json.positive(json.number(&base, 10000.0)?, &base)?;
    let json = json.without("rope_theta").without("partial_rotary_factor");
    json.partial_rotary(head_dim, share, theta)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let has_bias = json.flag(&["attention_bias"], true)?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?;
    let rotary = rotary(json, attention.head_dim, 0.25)?.rounded_up();
    let attention = attention
        .causal()
        .with_position(Position::Rotary(rotary))
        .with_bias(AttentionBias::new(has_bias, has_bias))
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-5)?);
    let topology = match json.flag(&["use_parallel_residual"], true)? {
        true => Topology::Parallel(ParallelNorm::Separate),
        false => Topology::Sequential,
    };
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_topology(topology)
        .with_residual_dropout(json.number(&["hidden_dropout"], 0.0)?);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}

fn japanese(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let mut attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .causal()
        .with_bias(AttentionBias::NONE)
        .with_dropout(json.number(&["attention_dropout"], 0.1)?);
    let rotary = rotary(json, attention.head_dim, 1.0)?;
    attention.position = Position::Rotary(rotary);
    let times = json.size_or(&["intermediate_multiple_size"], 4)?;
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(d_model.saturating_mul(times))
        .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?)
        .with_bias(false);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-5)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_residual_dropout(json.number(&["hidden_dropout"], 0.0)?);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    let stack = StackConfig::uniform(block, n_blocks, Some(norm));
    Ok(stack.with_each_attention(|i, attention| attention.bias.output = i + 1 == n_blocks))
}
