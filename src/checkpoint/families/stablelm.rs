//! StableLM: Llama's names with LayerNorm and partial rotary embeddings. Some sizes have parallel branches and a query/key
//! norm for each head.
//!
//! transformers' `StableLmDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/stablelm/modeling_stablelm.py>

use super::llama::{decoder, uniform, unrotated_block};
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("stablelm", config).block_rules([
        Rule::norm(
            "attention.query_norm.{e}",
            &["self_attn.q_layernorm.norms.{e}"],
        ),
        Rule::norm(
            "attention.key_norm.{e}",
            &["self_attn.k_layernorm.norms.{e}"],
        ),
    ])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let has_bias = json.flag(&["use_qkv_bias"], false)?;
    let mut block = unrotated_block(json, AttentionBias::new(has_bias, false))?;
    block.residual.feed_forward_dropout = json.number(&["hidden_dropout"], 0.0)?; // no dropout after the attention
    let norm = NormConfig::layer_norm(block.d_model(), json.number(&["layer_norm_eps"], 1e-5)?);
    block.norm = norm;
    let rotary = json.partial_rotary(block.attention()?.head_dim, 0.25, 10000.0)?;
    block.attention_mut()?.position = Position::Rotary(rotary);
    if json.flag(&["qk_layernorm"], false)? {
        block.attention_mut()?.query_key_norm = Some(QueryKeyNorm::new(
            norm.with_bias(false),
            QueryKeyNormSpan::EachHead,
        ));
    }
    if json.flag(&["use_parallel_residual"], false)? {
        block.topology = Topology::Parallel(ParallelNorm::Shared);
    }
    uniform(json, block)
}
