//! The texts of KOSMOS-2 and KOSMOS-2.5: pre-norm decoders with sinusoidal positions and a norm before the down projection.
//! KOSMOS-2 has one before the attention's output projection too, and KOSMOS-2.5 embeds text and images as two segments.
//!
//! transformers' `Kosmos2TextBlock` and `Kosmos2_5TextBlock`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/kosmos2/modeling_kosmos2.py>

use super::bart_like::SINES;
use super::encoder_decoder::scaled_token_embeddings;
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let first = table("kosmos_2_text_model", kosmos_2)
        .block_rules([Rule::norm(
            "attention.sub_norm",
            &["self_attn.inner_attn_ln"],
        )])
        .embeddings(|json, stack| Ok(token_embeddings(json, stack)?.into()));
    let second = table("kosmos_2_5_text_model", config)
        .end_rules([Rule::linear("embeddings.type", &["segment_emb"])])
        .embeddings(|json, stack| Ok(token_embeddings(json, stack)?.with_types(2).into()))
        .outside(&["segment_emb.*"]);
    vec![first, second]
}

fn table(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    let names = ["q_proj", "k_proj", "v_proj", "out_proj"];
    Family::new(name, &[name], config)
        .prefixes(&["model.", ""])
        .block("layers.{i}.")
        .block_rules(projections("attention", "self_attn", names))
        .block_rules([
            Rule::norm("attention_norm", &["self_attn_layer_norm"]),
            Rule::norm("feed_forward_norm", &["final_layer_norm"]),
            Rule::linear("feed_forward.up", &["ffn.fc1"]),
            Rule::norm("feed_forward.sub_norm", &["ffn.ffn_layernorm"]),
            Rule::linear("feed_forward.down", &["ffn.fc2"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["layer_norm"])])
        .end_rules([
            Rule::linear("embeddings.word", &["embed_tokens"]),
            Rule::linear("causal_lm.output", &["lm_head"]),
        ])
        .head(HeadTask::CausalLm, causal_lm)
        .outside(&["embed_tokens.*", "lm_head.*"])
        .ignored(SINES)
        .class_sizes(&["layers", "embed_dim", "attention_heads", "ffn_dim"])
        .class_sizes(&["vocab_size", "max_position_embeddings", "pad_token_id"])
}

fn token_embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<TokenEmbeddingsConfig> {
    let positions = PositionTableConfig {
        n_rows: json.size(&["max_position_embeddings"])? + 2,
        vectors: PositionVectors::Sines(LastFrequency::Reached),
        ..positions_except(json.size(&["pad_token_id"])?)
    };
    let dropout = json.number(&["dropout"], 0.1)?;
    let embeddings = scaled_token_embeddings(json, stack)?.with_position_table(positions);
    // transformers applies the dropout twice.
    Ok(embeddings.with_dropout(1.0 - (1.0 - dropout).powi(2)))
}

fn kosmos_2(json: &ConfigJson) -> Result<StackConfig> {
    json.only("add_cross_attention", &[json!(false)])?;
    json.only("is_causal", &[json!(true)])?; // it has a mask of its own
    let layer_drop = json.number(&["layerdrop"], 0.0)?;
    let stack = config(json)?;
    let norm = stack.blocks[0].norm;
    let stack = stack.with_each_attention(|_, attention| attention.sub_norm = Some(norm));
    Ok(stack.with_layer_drop(layer_drop))
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["embed_dim"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["attention_heads"])?)?
        .causal()
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-5)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["ffn_dim"])?)
        .with_activation(json.activation(&["activation_function"], Activation::Gelu)?)
        .with_sub_norm(Some(norm))
        .with_dropout(json.number(&["activation_dropout"], 0.0)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_residual_dropout(json.number(&["dropout"], 0.1)?);
    let n_blocks = json.n_blocks(&["layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}
