//! Llama 4 (text): Llama's blocks with chunked attention in layers with rotary embeddings, position-dependent temperature in
//! the others, and experts whose input is multiplied by their weight.
//!
//! transformers' `Llama4TextDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/llama4/modeling_llama4.py>

use super::llama::{bias, block, decoder, uniform};
use super::mixtral::experts_in_out;
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("llama4_text", config)
        .replace_block_rules(gated("feed_forward", "feed_forward"))
        .block_rules(gated("feed_forward.shared", "feed_forward.shared_expert"))
        .block_rules([Rule::linear(
            "feed_forward.router",
            &["feed_forward.router"],
        )])
        .block_rules(experts_in_out("feed_forward.experts"))
        .block_rules(gated(
            "feed_forward.experts.{e}",
            "feed_forward.experts.{e}", // of GGUF files
        ))
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, bias(json)?)?;
    block.feed_forward = block.feed_forward.with_bias(false);
    let rotary = json.rotary(block.attention()?.head_dim, 500_000.0)?;
    let rotary = rotary.with_pairing(RotaryPairing::Interleaved);
    block.attention_mut()?.position = Position::Rotary(rotary);
    let norm = NormConfig {
        weight: NormWeight::Absent,
        ..block.norm
    };
    let norm = QueryKeyNorm::new(norm, QueryKeyNormSpan::Head).after_rotation();
    let norm = json.flag(&["use_qk_norm"], true)?.then_some(norm);
    let temperature = PositionTemperature {
        beta: json.number(&["attn_scale"], 0.1)?,
        interval: json.size_or(&["floor_scale"], 8192)?,
        offset: 1,
        by: TemperatureBy::Place,
    };
    let tempers = json.flag(&["attn_temperature_tuning"], true)?;
    let chunk = json.switchable_size("attention_chunk_size", 8192)?;
    let d_ff = block.feed_forward.d_ff;
    let experts = experts(json, d_ff)?;
    let dense = json.size_or(&["intermediate_size_mlp"], 16384)?;
    let stack = uniform(json, block)?;
    let n_blocks = stack.blocks.len();
    let rotates = rotating_layers(json, n_blocks)?;
    let stays = chunked(json, &rotates)?;
    let step = json.size_or(&["interleave_moe_layer_step"], 1)?.max(1);
    let listed = json.numbers(&["moe_layers"])?;
    let stack = stack.with_each_attention(|i, attention| {
        attention.chunk = chunk.filter(|_| stays[i]);
        match rotates[i] {
            true => attention.query_key_norm = norm,
            false => {
                attention.position = Position::None;
                attention.temperature = tempers.then_some(temperature);
            }
        }
    });
    Ok(stack.with_each(|i, block| {
        let has_experts = match &listed {
            Some(layers) => layers.contains(&(i as f64)),
            None => (i + 1).is_multiple_of(step),
        };
        match has_experts {
            true => block.feed_forward.experts = Some(experts),
            false => block.feed_forward.d_ff = dense,
        }
    }))
}

fn experts(json: &ConfigJson, d_ff: usize) -> Result<ExpertsConfig> {
    let routing = RoutingConfig {
        scores: RoutingScores::Sigmoid,
        ..RoutingConfig::new(json.size_or(&["num_experts_per_tok"], 1)?)
    };
    let shared = SharedExpertConfig { d_ff, gate: false };
    let n_experts = json.size_or(&["num_local_experts", "num_experts"], 16)?;
    let experts = ExpertsConfig::new(n_experts, routing).with_shared(Some(shared));
    Ok(experts.with_weighted(ExpertWeighting::Inputs))
}

/// Returns for each layer whether it has rotary embeddings. An empty list counts as absent.
fn rotating_layers(json: &ConfigJson, n_blocks: usize) -> Result<Vec<bool>> {
    let key = "no_rope_layers"; // 1 with rotation
    match json.numbers(&[key])?.filter(|flags| !flags.is_empty()) {
        Some(flags) if flags.len() >= n_blocks => {
            Ok(flags.iter().map(|&flag| flag != 0.0).collect())
        }
        Some(flags) => {
            let reason = format!("lists {} layers, expected {n_blocks}", flags.len());
            Err(json.error(&[key], reason))
        }
        None => {
            let interval = json.size_or(&["no_rope_layer_interval"], 4)?;
            Ok((1..=n_blocks)
                .map(|i| !i.is_multiple_of(interval))
                .collect())
        }
    }
}

/// Returns for each layer whether its attention is chunked: from `layer_types`, or without it in layers with rotary
/// embeddings.
fn chunked(json: &ConfigJson, rotates: &[bool]) -> Result<Vec<bool>> {
    let key = "layer_types";
    let Some(types) = json.texts(&[key])? else {
        return Ok(rotates.to_vec());
    };
    let is_chunked = |kind: &String| match kind.as_str() {
        "chunked_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => {
            let known = "only \"full_attention\" and \"chunked_attention\"";
            Err(json.error(&[key], format!("{other:?} is not supported, {known}")))
        }
    };
    let all = types.iter().map(is_chunked).collect::<Result<Vec<_>>>()?;
    match all.len() >= rotates.len() {
        true => Ok(all),
        false => {
            let reason = format!("lists {} layers, expected {}", all.len(), rotates.len());
            Err(json.error(&[key], reason))
        }
    }
}
