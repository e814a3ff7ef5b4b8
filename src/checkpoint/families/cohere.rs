//! Cohere (Command R) 1 and 2: parallel branches after one LayerNorm without bias, and interleaved rotary embeddings. Cohere
//! 2 has sliding windows in some layers, and no rotation in the others.
//!
//! transformers' `CohereDecoderLayer` and `Cohere2DecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/cohere2/modeling_cohere2.py>

use super::llama::{bias, block, decoder, uniform};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let table = |name: &str, config| {
        decoder(name, config).head(HeadTask::CausalLm, |json, _| {
            let scale = json.number(&["logit_scale"], 0.0625)?;
            next_token(language_model(json)?.with_scale(scale))
        })
    };
    let cohere = table("cohere", cohere).block_rules([
        Rule::norm("attention.query_norm.{e}", &["self_attn.q_norm"]).stacked(),
        Rule::norm("attention.key_norm.{e}", &["self_attn.k_norm"]).stacked(),
    ]);
    vec![cohere, table("cohere2", cohere2)]
}

fn cohere(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = parallel(json, 500000.0)?;
    if json.flag(&["use_qk_norm"], false)? {
        block.attention_mut()?.query_key_norm =
            Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::EachHead));
    }
    uniform(json, block)
}

fn cohere2(json: &ConfigJson) -> Result<StackConfig> {
    let stack = uniform(json, parallel(json, 10000.0)?)?;
    let window = json.switchable_size("sliding_window", 4096)?;
    let period = json.size_or(&["sliding_window_pattern"], 4)?;
    let is_sliding =
        json.sliding_layers(stack.blocks.len(), |i| !(i + 1).is_multiple_of(period))?;
    Ok(stack.with_each_attention(|i, attention| {
        attention.window = window.filter(|_| is_sliding[i]);
        if attention.window.is_none() {
            attention.position = Position::None;
        }
    }))
}

fn parallel(json: &ConfigJson, default_theta: f64) -> Result<BlockConfig> {
    let mut block = block(json, bias(json)?)?;
    let norm = NormConfig::layer_norm(block.d_model(), json.number(&["layer_norm_eps"], 1e-5)?);
    block.norm = norm.with_bias(false);
    block.topology = Topology::Parallel(ParallelNorm::Shared);
    let rotary = json.rotary(block.attention()?.head_dim, default_theta)?;
    let interleaved = rotary.with_pairing(RotaryPairing::Interleaved);
    block.attention_mut()?.position = Position::Rotary(interleaved);
    Ok(block)
}
