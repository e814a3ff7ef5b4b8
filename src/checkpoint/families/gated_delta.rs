//! The parts that decoders with gated delta rules share: the rules for a mixer's tensors, its sizes, the types of layers and
//! the initialization.
//!
//! transformers' `Qwen3NextGatedDeltaNet`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen3_next/modeling_qwen3_next.py>

use super::layer_types::{FULL, LINEAR};
use super::prelude::*;

/// Rules for a mixer without its projections. The three convolutions are fused in one tensor.
pub(super) fn mixer_rules(norm: &str, output: &str) -> Vec<Rule> {
    use MixerPart::{Key, Query, Value};
    let convolution = |(part, projection)| {
        let role = format!("attention.delta.{part}_convolution");
        let stems = ["linear_attn.conv1d"];
        Rule::linear(&role, &stems).part(Part::Mixer(MixerLayout::QueryKeyValue, projection))
    };
    let mut rules = [("query", Query), ("key", Key), ("value", Value)]
        .map(convolution)
        .to_vec();
    rules.extend([
        Rule::named("attention.delta.decay", &[], &["linear_attn.dt_bias"]),
        Rule::named("attention.delta.rate", &["linear_attn.A_log"], &[]),
        Rule::norm("attention.delta.norm", &[norm]),
        Rule::linear("attention.delta.output", &[output]),
    ]);
    rules
}

/// Rules for projections that each have a tensor, from role to name.
pub(super) fn projections_apart<const N: usize>(names: [(&str, &str); N]) -> [Rule; N] {
    names.map(|(part, name)| {
        let weight = format!("linear_attn.{name}.weight");
        Rule::named(&format!("attention.delta.{part}"), &[&weight], &[])
    })
}

/// Rules for one tensor of queries, keys and values, and others each with a tensor: Qwen 3.5's.
pub(super) fn projections() -> Vec<Rule> {
    use MixerPart::{Key, Query, Value};
    let fused = |(part, projection)| {
        let weight = ["linear_attn.in_proj_qkv.weight"];
        let rule = Rule::named(&format!("attention.delta.{part}"), &weight, &[]);
        rule.part(Part::Mixer(MixerLayout::QueryKeyValue, projection))
    };
    let mut rules = projections_apart([
        ("gate", "in_proj_z"),
        ("write", "in_proj_b"),
        ("decay", "in_proj_a"),
    ])
    .to_vec();
    rules.extend([("query", Query), ("key", Key), ("value", Value)].map(fused));
    rules
}

/// Returns the mixer, with Qwen's defaults of its sizes.
pub(super) fn delta(json: &ConfigJson, d_model: usize) -> Result<GatedDeltaNetConfig> {
    let size = |key: &str, default| json.width_or(&[key], default);
    let n_heads = [
        size("linear_num_key_heads", 16)?,
        size("linear_num_value_heads", 32)?,
    ];
    let dims = [
        size("linear_key_head_dim", 128)?,
        size("linear_value_head_dim", 128)?,
    ];
    // The convolutions have this activation too, and the layer has no other one.
    json.only("hidden_act", &[json!("silu"), json!("swish")])?;
    let eps = json.number(&["rms_norm_eps"], 1e-6)?;
    let delta = GatedDeltaNetConfig::new(d_model, n_heads, dims)
        .with_taps(size("linear_conv_kernel_dim", 4)?)
        .with_norm(NormConfig::rms_norm(dims[1], eps));
    Ok(delta)
}

/// Places the mixer in the layers of that type; without `layer_types`, every `full_attention_interval`-th layer has
/// attention.
pub(super) fn with_mixers(json: &ConfigJson, stack: StackConfig) -> Result<StackConfig> {
    let interval = json.width_or(&["full_attention_interval"], 4)?;
    let kind = |i: usize| match (i + 1).is_multiple_of(interval) {
        true => FULL,
        false => LINEAR,
    };
    let kinds = json.layer_types(stack.blocks.len(), &[FULL, LINEAR], kind)?;
    let delta = delta(json, stack.blocks[0].d_model())?;
    Ok(stack.with_each(|i, block| {
        if kinds[i] == LINEAR {
            block.mixer = delta.into();
        }
    }))
}

/// transformers' `Qwen3NextPreTrainedModel._init_weights`.
pub(super) fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let rates = Distribution::LogOfUniform {
        low: 0.01,
        high: 16.0,
    };
    let all = Initialization::normal(initializer_range::deviation(json, 0.02)?);
    Ok(all
        .with("*delta.decay.bias", Distribution::Constant(1.0))
        .with("*delta.rate.weight", rates))
}
