//! Ling 3.0: gated delta rules with a bounded factor for each channel in most layers, latent attention with a gate for each
//! head in the others, and experts selected by sigmoids.
//!
//! transformers' `BailingHybridDeltaAttention` and `BailingHybridAttention`:
//! <https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/models/bailing_hybrid/modeling_bailing_hybrid.py>

use super::kimi_linear::{delta_rules, keys_and_initialization, with_delta};
use super::latent::{latent_block, latent_decoder};
use super::layer_types::{FULL, LINEAR};
use super::llama::uniform;
use super::mixtral::expert_rules;
use super::prelude::*;
use super::sigmoid_experts::correction;

pub(super) fn family() -> Family {
    let delta = [("gate", "g_proj"), ("decay", "f_proj"), ("output", "dense")];
    let table = latent_decoder("bailing_hybrid", bailing_hybrid)
        .replace_block_rules([
            Rule::linear(
                "attention.query",
                &["attention.q_b_proj", "attention.q_proj"],
            ),
            Rule::linear("attention.query_latent", &["attention.q_a_proj"]),
            Rule::norm("attention.query_latent_norm", &["attention.q_a_layernorm"]),
            Rule::linear("attention.latent", &["attention.kv_a_proj_with_mqa"]),
            Rule::norm("attention.latent_norm", &["attention.kv_a_layernorm"]),
            Rule::linear("attention.key_value", &["attention.kv_b_proj"]),
            Rule::linear("attention.gate", &["attention.g_proj"]),
            Rule::linear("attention.output", &["attention.dense"]),
        ])
        .block_rules(delta_rules("attention", &delta))
        .block_rules([Rule::named(
            "attention.delta.rate",
            &["attention.A_log"],
            &[],
        )])
        .block_rules(expert_rules())
        .block_rules(gated("feed_forward.shared", "mlp.shared_experts"))
        .block_rules([correction("mlp.gate.expert_bias")])
        .without_embeddings_and_heads()
        .decoder_embeddings_and_heads("word_embeddings", "score")
        .replace_end_rules([Rule::linear(
            "embeddings.word",
            &["word_embeddings", "embed_tokens"],
        )])
        .outside(&["*word_embeddings.*"]);
    keys_and_initialization(table)
}

fn bailing_hybrid(json: &ConfigJson) -> Result<StackConfig> {
    json.only("hidden_act", &[json!("silu"), json!("swish")])?; // of the convolutions too
    let rotary = json!({"rope_theta": json.number(&["rope_theta"], 6e6)?});
    let of_attention = json.without("head_dim"); // which attention does not read
    let of_attention = of_attention.with_default("rope_parameters", rotary);
    let pairing = Some(RotaryPairing::Interleaved);
    let mut block = latent_block(&of_attention, [0, 512, 128, 64, 128], pairing)?;
    block.attention_mut()?.output_gate =
        Some(OutputGate::new(Activation::Sigmoid, OutputGateSpan::Head));
    let n_heads = json.size(&["num_attention_heads"])?;
    // transformers writes both, and reads the first.
    let size = |key: &str, otherwise: &str, default| -> Result<usize> {
        let of_other = json.size_or(&[otherwise], default)?;
        Ok(json.optional_size(&[key])?.unwrap_or(of_other))
    };
    let head_dim = size("linear_head_dim", "head_dim", 128)?;
    let n_linear = json.size_or(&["linear_num_heads"], n_heads)?;
    let bound = json.number(&["kda_lower_bound"], -5.0)?;
    let delta = GatedDeltaNetConfig::new(block.d_model(), [n_linear; 2], [head_dim; 2])
        .with_taps(size("linear_conv_kernel_dim", "short_conv_kernel_size", 4)?)
        .with_norm(NormConfig::rms_norm(head_dim, block.norm.eps))
        .with_form(DeltaForm::Channel {
            rank: None,
            bound: json.flag(&["kda_safe_gate"], true)?.then_some(bound),
        });
    let stack = uniform(json, block)?;
    let group = json.size_or(&["layer_group_size"], 6)?;
    let kind = |i: usize| match (i + 1).is_multiple_of(group) {
        true => FULL,
        false => LINEAR,
    };
    with_delta(json, stack, delta, kind, 2)
}
