//! Muse Glimmer's text: norms before and after each sublayer with an eps each, normalized embeddings, queries and keys without
//! weights of the norms, a gate on attention's results, and rotary embeddings only in some layers.
//!
//! transformers' `MuseGlimmerTextDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/muse_glimmer/modeling_muse_glimmer.py>

use super::llama::{bias, block, decoder, uniform};
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("muse_glimmer_text", config)
        .block_rules([
            Rule::linear("attention.gate", &["self_attn.gate_proj"]),
            Rule::norm("attention_output_norm", &["post_attention_layernorm"]),
            Rule::norm("feed_forward_output_norm", &["post_feedforward_layernorm"]),
        ])
        .replace_block_rules([Rule::norm(
            "feed_forward_norm",
            &["pre_feedforward_layernorm"],
        )])
        .without_heads()
        .head(HeadTask::CausalLm, |json, _| {
            let scale = json.number(&["output_multiplier"], 0.19611613513818404)?;
            let key = ["final_logit_softcapping"];
            let cap = json.positive(json.number(&key, 20.0)?, &key)?;
            let output = language_model(json)?.with_scale(scale);
            next_token(output.with_soft_cap(Some(cap)))
        })
        .embeddings(|json, stack| {
            let embeddings = padded_token_embeddings(json, stack)?;
            let norm = NormConfig::rms_norm(embeddings.d_model, stack.blocks[0].norm.eps);
            Ok(embeddings
                .with_norm(norm.with_weight(NormWeight::Absent))
                .into())
        })
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = sandwich_block(block(&json.without("hidden_act"), bias(json)?)?);
    let final_norm = block.norm;
    block.norm = block.norm.with_weight(NormWeight::OnePlus);
    block.own = OwnConfig::MuseGlimmer {
        output_norm_eps: json.number(&["post_norm_eps"], 1e-8)?,
    };
    let attention = block.attention_mut()?;
    attention.scale *= json.number(&["qk_scale_factor"], 3.87)?;
    let norm = final_norm.with_weight(NormWeight::Absent);
    attention.query_key_norm = Some(QueryKeyNorm::new(norm, QueryKeyNormSpan::Head));
    attention.output_gate = Some(OutputGate::new(
        Activation::Sigmoid,
        OutputGateSpan::Channel,
    ));
    let stack = StackConfig {
        final_norm: Some(final_norm),
        ..uniform(json, block)?
    };
    let n_blocks = stack.blocks.len();
    // Every fourth layer, counted from the last.
    let is_global = |i: usize| (n_blocks - 1 - i).is_multiple_of(4);
    let key = "layer_rope_theta"; // 0 is for no rotation
    let rotates: Vec<bool> = match json.numbers(&[key])? {
        Some(thetas) if thetas.len() >= n_blocks => {
            thetas.iter().map(|&theta| theta != 0.0).collect()
        }
        Some(thetas) => {
            let reason = format!("lists {} layers, expected {n_blocks}", thetas.len());
            return Err(json.error(&[key], reason));
        }
        None => (0..n_blocks).map(|i| !is_global(i)).collect(),
    };
    let window = json.switchable_size("sliding_window", 2048)?;
    let is_sliding = json.sliding_layers(n_blocks, |i| !is_global(i))?;
    Ok(stack.with_each_attention(|i, attention| {
        attention.window = window.filter(|_| is_sliding[i]);
        if !rotates[i] {
            attention.position = Position::None;
        }
    }))
}
