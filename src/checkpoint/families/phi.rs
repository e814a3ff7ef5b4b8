//! Phi-1, 1.5 and 2: parallel branches behind one LayerNorm, a part of each head rotated.
//!
//! transformers' `PhiDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/phi/modeling_phi.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("phi", &["phi"], config)
        .prefixes(&["model.", ""])
        .block("layers.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["input_layernorm"]),
            Rule::linear("attention.query", &["self_attn.q_proj"]),
            Rule::linear("attention.key", &["self_attn.k_proj"]),
            Rule::linear("attention.value", &["self_attn.v_proj"]),
            Rule::linear("attention.output", &["self_attn.dense"]),
            Rule::norm("attention.query_norm", &["self_attn.q_layernorm"]),
            Rule::norm("attention.key_norm", &["self_attn.k_layernorm"]),
            Rule::linear("feed_forward.up", &["mlp.fc1"]),
            Rule::linear("feed_forward.down", &["mlp.fc2"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["final_layernorm"])])
        .ignored(&["*.inv_freq"])
        .outside(&["embed_tokens.*", "lm_head.*", "score.*", "classifier.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let n_heads = json.size(&["num_attention_heads"])?;
    let attention = AttentionConfig::new(d_model, n_heads)?;
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-5)?);
    let rotary = json.partial_rotary(attention.head_dim, 0.5, 10000.0)?;
    let normalized = json.flag(&["qk_layernorm"], false)?;
    let attention = attention
        .with_kv_heads(json.size_or(&["num_key_value_heads"], n_heads)?)
        .causal()
        .with_position(Position::Rotary(rotary))
        .with_query_key_norm(normalized.then_some(QueryKeyNorm {
            norm,
            span: QueryKeyNormSpan::Head,
        }))
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::GeluTanh)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_topology(Topology::Parallel(ParallelNorm::Shared))
        .with_residual_dropout(json.number(&["resid_pdrop"], 0.0)?);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}
