//! AFMoE (Arcee Trinity): norms before and after each sublayer, a gate on attention's results, rotary embeddings only in layers
//! with a sliding window, and experts selected by sigmoids.
//!
//! transformers' `AfmoeDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/afmoe/modeling_afmoe.py>

use super::llama::{bias, block, uniform};
use super::prelude::*;
use super::sigmoid_experts::{chosen_by_sigmoids, with_experts};

pub(super) fn family() -> Family {
    let norm = |role: &str, name: &str| Rule::norm(role, &[name]);
    chosen_by_sigmoids("afmoe", afmoe, "mlp.expert_bias")
        .block_rules([Rule::linear("attention.gate", &["self_attn.gate_proj"])])
        .replace_block_rules([
            Rule::linear("feed_forward.router", &["mlp.router.gate"]),
            norm("attention_output_norm", "post_attention_layernorm"),
            norm("feed_forward_norm", "pre_mlp_layernorm"),
            norm("feed_forward_output_norm", "post_mlp_layernorm"),
        ])
        .renamed("n_routed_experts", "num_experts")
        .renamed("n_shared_experts", "num_shared_experts")
        .renamed("routed_scaling_factor", "route_scale")
        .class_sizes(&["num_experts_per_tok"])
        .embeddings(|json, stack| {
            let embeddings = padded_token_embeddings(json, stack)?;
            let scale = match json.flag(&["mup_enabled"], false)? {
                true => (embeddings.d_model as f64).sqrt(),
                false => 1.0,
            };
            Ok(embeddings.with_scale(scale).into())
        })
}

fn afmoe(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = sandwich_block(block(json, bias(json)?)?);
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    block.attention_mut()?.output_gate = Some(OutputGate::new(
        Activation::Sigmoid,
        OutputGateSpan::Channel,
    ));
    let stack = uniform(json, block)?;
    let window = json.switchable_size("sliding_window", 1024)?;
    let period = json.size_or(&["global_attn_every_n_layers"], 4)?;
    let is_sliding =
        json.sliding_layers(stack.blocks.len(), |i| !(i + 1).is_multiple_of(period))?;
    // Which a GGUF file's layers follow, whatever their windows.
    let interval = json.optional_size(&["no_rope_layer_interval"])?;
    let stack = stack.with_each_attention(|i, attention| {
        if is_sliding[i] {
            attention.window = window;
        }
        if !interval.map_or(is_sliding[i], |n| !(i + 1).is_multiple_of(n)) {
            attention.position = Position::None;
        }
    });
    let first = json.size_or(&["num_dense_layers"], 1)?;
    with_experts(json, stack, true, |i| Ok(i >= first))
}
