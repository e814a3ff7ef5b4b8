//! OLMo Hybrid: gated delta rules with norms before the sublayers in most layers, and OLMo 2's layers in the others.
//!
//! transformers' `OlmoHybridLinearAttentionDecoderLayer` and `OlmoHybridAttentionDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/olmo_hybrid/modeling_olmo_hybrid.py>

use super::gated_delta::{delta, mixer_rules, projections_apart};
use super::layer_types::{FULL, LINEAR};
use super::llama::{bias, decoder, uniform, unrotated_block};
use super::prelude::*;

pub(super) fn family() -> Family {
    let convolution = |part: &str, letter: &str| {
        let role = format!("attention.delta.{part}_convolution");
        Rule::linear(&role, &[&format!("linear_attn.{letter}_conv1d")])
    };
    decoder("olmo_hybrid", olmo_hybrid)
        .replace_block_rules([
            Rule::norm(
                "attention_norm",
                &["attention_layer_norm", "input_layernorm"],
            ),
            Rule::norm(
                "feed_forward_norm",
                &["feedforward_layer_norm", "post_attention_layernorm"],
            ),
            Rule::norm(
                "attention_output_norm",
                &["feedforward_layer_norm", "post_attention_layernorm"],
            ),
            Rule::norm("feed_forward_output_norm", &["post_feedforward_layernorm"]),
        ])
        .block_rules([
            convolution("query", "q"),
            convolution("key", "k"),
            convolution("value", "v"),
        ])
        .block_rules(mixer_rules("linear_attn.o_norm", "linear_attn.o_proj"))
        .block_rules(projections_apart([
            ("query", "q_proj"),
            ("key", "k_proj"),
            ("value", "v_proj"),
            ("gate", "g_proj"),
            ("write", "b_proj"),
            ("decay", "a_proj"),
        ]))
        .initialization(initialization)
}

fn olmo_hybrid(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = unrotated_block(json, bias(json)?)?;
    if rotates(json)? {
        let rotary = json.rotary(block.attention()?.head_dim, 10000.0)?;
        block.attention_mut()?.position = Position::Rotary(rotary);
    }
    let norm = QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Whole);
    block.attention_mut()?.query_key_norm = Some(norm);
    let delta = mixer(json, block.attention()?)?;
    let stack = uniform(json, block)?;
    let n_layers = stack.blocks.len();
    let kind = |i: usize| match i % 4 == 3 || (n_layers < 4 && i + 1 == n_layers) {
        true => FULL,
        false => LINEAR,
    };
    let kinds = json.layer_types(n_layers, &[FULL, LINEAR], kind)?;
    Ok(stack.with_each(|i, block| match kinds[i] {
        LINEAR => block.mixer = delta.into(),
        _ => {
            block.attention_placement = NormPlacement::Output;
            block.feed_forward_placement = NormPlacement::Output;
        }
    }))
}

/// Returns whether positions rotate queries and keys: unless `rope_theta` is null, beside the other keys or inside
/// `rope_parameters`. transformers replaces `rope_parameters` by its defaults if the section itself is null.
fn rotates(json: &ConfigJson) -> Result<bool> {
    let section = json.rotary_section()?;
    let inside = section
        .as_ref()
        .and_then(|section| section.at("rope_theta"));
    let theta = inside.or(json.at("rope_theta"));
    Ok(!theta.is_some_and(Value::is_null))
}

/// Returns the mixer, whose sizes follow from the attention's unless the file has them.
fn mixer(json: &ConfigJson, attention: &AttentionConfig) -> Result<GatedDeltaNetConfig> {
    let n_heads = attention.n_heads;
    let n_key_heads = json.width_or(&["linear_num_key_heads"], n_heads)?;
    let key_dim = (0.75 * attention.d_model as f64 / n_key_heads as f64) as usize;
    let key_dim = json.width_or(&["linear_key_head_dim"], key_dim)?;
    let sizes = json
        .with_default("linear_num_key_heads", n_key_heads)
        .with_default("linear_num_value_heads", n_heads)
        .with_default("linear_key_head_dim", key_dim)
        .with_default("linear_value_head_dim", 2 * key_dim)
        .with("rms_norm_eps", 1e-5); // of the mixer's norm, whatever the others have
    let strength = match json.flag(&["linear_allow_neg_eigval"], true)? {
        true => 2.0,
        false => 1.0,
    };
    Ok(delta(&sizes, attention.d_model)?.with_strength(strength))
}

/// transformers' `OlmoHybridPreTrainedModel._init_weights`.
fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let rates = Distribution::LogOfUniform {
        low: json.number(&["linear_a_log_min"], 0.0)?,
        high: json.number(&["linear_a_log_max"], 16.0)?,
    };
    let steps = Distribution::BeforeSoftplus {
        low: json.number(&["linear_dt_min"], 1e-3)?,
        high: json.number(&["linear_dt_max"], 0.1)?,
        floor: json.number(&["linear_dt_init_floor"], 1e-4)?,
    };
    let all = Initialization::normal(initializer_range::deviation(json, 0.02)?);
    Ok(all
        .with("*delta.decay.bias", steps)
        .with("*delta.rate.weight", rates))
}
