//! Phi-3.5-MoE: Llama's blocks with LayerNorm, and experts selected one after another by a sparse mixer.
//!
//! transformers' `PhimoeDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/phimoe/modeling_phimoe.py>

use super::llama::{bias, block, decoder, uniform};
use super::mixtral::mixtral_rules;
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("phimoe", config)
        .block_rules(mixtral_rules())
        .head(HeadTask::CausalLm, |json, _| {
            let has_bias = json.flag(&["lm_head_bias"], false)?;
            next_token(language_model(json)?.with_bias(has_bias))
        })
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("num_experts_per_tok", &[json!(2)])?; // it selects two experts, whatever the key says
    let mut block = block(json, bias(json)?)?;
    block.norm = NormConfig::layer_norm(block.d_model(), json.number(&["rms_norm_eps"], 1e-5)?);
    block.attention_mut()?.window = json.optional_size(&["sliding_window"])?;
    block.attention_mut()?.position = Position::Rotary(rotary(json, block.attention()?.head_dim)?);
    let tolerance = 2.0 * json.number(&["router_jitter_noise"], 0.01)?;
    let routing = RoutingConfig {
        scores: RoutingScores::Logits,
        weights: RoutingWeights::AmongNear { tolerance },
        ..RoutingConfig::new(2)
    };
    let n_experts = json.size_or(&["num_local_experts", "num_experts"], 16)?;
    block.feed_forward.experts = Some(ExpertsConfig::new(n_experts, routing));
    uniform(json, block)
}

/// Returns LongRoPE with a factor on cosine and sine for each length, and the short sequences' divisors for all lengths:
/// transformers computes the frequencies without the sequence length.
fn rotary(json: &ConfigJson, head_dim: usize) -> Result<RotaryConfig> {
    let mut rotary = json.rotary(head_dim, 1e6)?;
    let Some(parameters) = json.rotary_section()? else {
        return Ok(rotary);
    };
    for key in ["rope_type", "type"] {
        parameters.only(key, &["default", "longrope"].map(Value::from))?;
    }
    if let RotaryScaling::LongRope {
        short_factor,
        long_factor,
        attention_factor,
        long_attention_factor,
        original_positions,
        ..
    } = &mut rotary.scaling
    {
        let required = |key: &str| {
            let number = parameters.optional_number(&[key])?;
            number.ok_or_else(|| parameters.error(&[key], "missing, expected a number"))
        };
        long_factor.clone_from(short_factor);
        // The class reads this key in the rotation only, and ignores the key outside.
        if let Some(size) = parameters.optional_size(&["original_max_position_embeddings"])? {
            *original_positions = size;
        }
        *attention_factor = required("short_mscale")?;
        *long_attention_factor = Some(required("long_mscale")?);
    }
    Ok(rotary)
}
