//! Cohere (Command R): parallel branches behind one LayerNorm without bias, interleaved rotation.
//!
//! transformers' `CohereDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/cohere/modeling_cohere.py>

use super::llama::{bias, block, decoder, uniform};
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("cohere", config)
        .block_rules([
            Rule::norm("attention.query_norm.{e}", &["self_attn.q_norm"]).stacked(),
            Rule::norm("attention.key_norm.{e}", &["self_attn.k_norm"]).stacked(),
        ])
        .head(Task::CausalLm, |json, _| {
            let scale = json.number(&["logit_scale"], 0.0625)?;
            next_token(language_model(json)?.with_scale(scale))
        })
        .default_of("tie_word_embeddings", true)
        .default_of("pad_token_id", 0)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, bias(json)?)?;
    let norm = NormConfig::layer_norm(block.d_model(), json.number(&["layer_norm_eps"], 1e-5)?);
    block.norm = norm.with_bias(false);
    block.topology = Topology::Parallel(ParallelNorm::Shared);
    let rotary = json.rotary(block.attention.head_dim, 500000.0)?;
    let interleaved = rotary.with_pairing(RotaryPairing::Interleaved);
    block.attention.position = Position::Rotary(interleaved);
    if json.flag(&["use_qk_norm"], false)? {
        block.attention.query_key_norm =
            Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::EachHead));
    }
    uniform(json, block)
}
