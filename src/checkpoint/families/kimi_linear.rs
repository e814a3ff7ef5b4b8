//! Kimi Linear: gated delta rules with a factor for each channel in most layers, latent attention without positions in the
//! others, and experts selected by sigmoids.
//!
//! transformers' `KimiLinearDeltaAttention` and `KimiLinearAttention`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/kimi_linear/modeling_kimi_linear.py>

use super::latent::{latent_block, latent_decoder};
use super::layer_types::{FULL, LINEAR};
use super::listed_experts::sparse_layers;
use super::llama::uniform;
use super::mixtral::mixtral_rules;
use super::prelude::*;
use super::sigmoid_experts::{correction, with_experts};

pub(super) fn family() -> Family {
    let own = [
        ("gate.low", "g_a_proj"),
        ("gate", "g_b_proj"),
        ("decay.low", "f_a_proj"),
        ("decay", "f_b_proj"),
        ("output", "o_proj"),
    ];
    // transformers saves those of dense layers under the experts' name.
    let dense = ["gate", "up", "down"].map(|part| {
        let stems = ["block_sparse_moe", "mlp"].map(|stem| format!("{stem}.{part}_proj"));
        Rule::linear(&format!("feed_forward.{part}"), &[&stems[0], &stems[1]])
    });
    let table = latent_decoder("kimi_linear", kimi_linear)
        .replace_block_rules(dense)
        .block_rules(delta_rules("self_attn", &own))
        .block_rules([Rule::with_leading_ones(
            "attention.delta.rate",
            &["self_attn.A_log"],
            2,
        )])
        .block_rules(mixtral_rules())
        .block_rules(gated(
            "feed_forward.shared",
            "block_sparse_moe.shared_experts",
        ))
        .block_rules([correction("block_sparse_moe.gate.e_score_correction_bias")]);
    keys_and_initialization(table)
}

/// Names a family's keys as Kimi Linear and Ling 3.0 do, and draws parameters like their classes.
pub(super) fn keys_and_initialization(table: Family) -> Family {
    table
        .initialization(initialization)
        .renamed("norm_topk_prob", "moe_renormalize")
        .renamed("n_group", "num_expert_group")
        .renamed("num_local_experts", "num_experts")
        .renamed("num_experts_per_tok", "num_experts_per_token")
        .renamed("n_shared_experts", "num_shared_experts")
        .renamed("max_position_embeddings", "model_max_length")
        .default_of("q_lora_rank", Value::Null)
}

/// Rules for a gated delta rule with a factor for each channel, under `stem`. `own` has the names that families do not share.
pub(super) fn delta_rules(stem: &str, own: &[(&str, &str)]) -> Vec<Rule> {
    let parts = [
        ("query", "q_proj"),
        ("key", "k_proj"),
        ("value", "v_proj"),
        ("query_convolution", "q_conv1d"),
        ("key_convolution", "k_conv1d"),
        ("value_convolution", "v_conv1d"),
        ("write", "b_proj"),
        ("norm", "o_norm"),
    ];
    let rule = |(part, name): &(&str, &str)| {
        let (weight, bias) = (format!("{stem}.{name}.weight"), format!("{stem}.dt_bias"));
        let bias: &[&str] = if *part == "decay" { &[&bias] } else { &[] };
        Rule::named(&format!("attention.delta.{part}"), &[&weight], bias)
    };
    parts.iter().chain(own).map(rule).collect()
}

fn kimi_linear(json: &ConfigJson) -> Result<StackConfig> {
    json.only("hidden_act", &[json!("silu"), json!("swish")])?; // of the convolutions too
    let json = &json.without("head_dim"); // which nothing reads
    let mut block = latent_block(json, [0, 512, 128, 64, 128], Some(RotaryPairing::Halves))?;
    block.attention_mut()?.position = Position::None;
    let stack = uniform(json, block)?;
    let own = json.section(&["linear_attn_config"])?;
    let own = own.as_ref();
    let size = |key: &str, of_class: &str, default| match own {
        Some(own) if own.at(key).is_some() => own.width_or(&[key], default),
        _ => json.width_or(&[of_class], default),
    };
    let head_dim = size("head_dim", "linear_head_dim", 128)?;
    let n_heads = size("num_heads", "linear_num_heads", 32)?;
    let norm = NormConfig::rms_norm(head_dim, json.number(&["rms_norm_eps"], 1e-5)?);
    let delta = GatedDeltaNetConfig::new(json.size(&["hidden_size"])?, [n_heads; 2], [head_dim; 2])
        .with_taps(size("short_conv_kernel_size", "linear_conv_kernel_dim", 4)?)
        .with_norm(norm)
        .with_form(DeltaForm::Channel {
            rank: Some(head_dim),
            bound: None,
        });
    let full = own.map(|own| own.numbers(&["full_attn_layers"]));
    let full = full.transpose()?.flatten();
    let kind = |i: usize| match &full {
        Some(full) if full.contains(&((i + 1) as f64)) => FULL,
        None if i > 0 && i.is_multiple_of(4) => FULL,
        _ => LINEAR,
    };
    with_delta(json, stack, delta, kind, 1)
}

/// Places the mixer in layers that are not of the kind `full_attention`, and experts in layers from `first` on, where the
/// file does not list them.
pub(super) fn with_delta(
    json: &ConfigJson,
    stack: StackConfig,
    delta: GatedDeltaNetConfig,
    kind: impl Fn(usize) -> &'static str,
    first: usize,
) -> Result<StackConfig> {
    let n_layers = stack.blocks.len();
    let kinds = json.layer_types(n_layers, &[FULL, LINEAR], kind)?;
    let first = json.size_or(&["first_k_dense_replace"], first)?;
    let is_sparse = sparse_layers(json, n_layers, |i| i >= first)?;
    let stack = with_experts(json, stack, true, |i| Ok(is_sparse[i]))?;
    Ok(stack.with_each(|i, block| {
        if kinds[i] == LINEAR {
            block.mixer = delta.into();
        }
    }))
}

/// transformers' `KimiLinearPreTrainedModel._init_weights`, and that of Ling 3.0.
fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let rates = Distribution::LogOfUniform {
        low: 1.0,
        high: 16.0,
    };
    let steps = Distribution::BeforeSoftplus {
        low: 1e-3,
        high: 0.1,
        floor: 1e-4,
    };
    let all = Initialization::normal(initializer_range::deviation(json, 0.02)?);
    Ok(all
        .with("*delta.decay.bias", steps)
        .with("*delta.rate.weight", rates))
}
