//! Phi-1, 1.5 and 2: parallel branches after one LayerNorm, partial rotary embeddings.
//!
//! transformers' `PhiDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/phi/modeling_phi.py>

use super::llama::{uniform, unrotated_block};
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
        .block_rules(Rule::fused_attention(
            &["self_attn.qkv_proj"], // of GGUF files
            FusedLayout::Blocks,
        ))
        .stack_rules([Rule::norm("final_norm", &["final_layernorm"])])
        .decoder_embeddings_and_heads("embed_tokens", "score")
        .embeddings(|json, stack| {
            let dropout = json.number(&["embd_pdrop"], 0.0)?;
            Ok(padded_token_embeddings(json, stack)?
                .with_dropout(dropout)
                .into())
        })
        .head(HeadTask::CausalLm, |json, _| {
            next_token(language_model(json)?.with_bias(true))
        })
        .outside(&["embed_tokens.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = unrotated_block(json, AttentionBias::ALL)?
        .with_topology(Topology::Parallel(ParallelNorm::Shared))
        .with_residual_dropout(json.number(&["resid_pdrop"], 0.0)?);
    block.norm = NormConfig::layer_norm(block.d_model(), json.number(&["layer_norm_eps"], 1e-5)?);
    let rotary = json.partial_rotary(block.attention()?.head_dim, 0.5, 10000.0)?;
    block.attention_mut()?.position = Position::Rotary(rotary);
    if json.flag(&["qk_layernorm"], false)? {
        let norm = QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head);
        block.attention_mut()?.query_key_norm = Some(norm);
    }
    block.feed_forward = block
        .feed_forward
        .with_form(FeedForwardForm::Plain)
        .with_activation(json.activation(&["hidden_act"], Activation::GeluTanh)?)
        .with_bias(true);
    uniform(json, block)
}
