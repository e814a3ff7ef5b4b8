//! Falcon-H1: attention and Mamba-2 side by side in each block, and factors on the output of most layers.
//!
//! transformers' `FalconH1DecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/falcon_h1/modeling_falcon_h1.py>

use super::llama::{biased_block, uniform};
use super::mamba_mixer::{heads_of_width, of_heads};
use super::prelude::*;
use super::{bamba, granite};

pub(super) fn family() -> Family {
    bamba::table("falcon_h1", falcon_h1)
        .embeddings(granite::embeddings)
        .head(HeadTask::CausalLm, |json, _| {
            let scale = json.number(&["lm_head_multiplier"], 1.0)?;
            next_token(language_model(json)?.with_scale(scale))
        })
}

fn falcon_h1(json: &ConfigJson) -> Result<StackConfig> {
    json.only("projectors_bias", &[false.into()])?;
    json.only("hidden_act", &["silu".into(), "swish".into()])?; // also of the convolutions
    let mut block = biased_block(json)?;
    block.norm.eps = json.number(&["rms_norm_eps"], 1e-5)?;

    let [gate, output] = multipliers(json, "mlp_multipliers")?;
    block.feed_forward = block
        .feed_forward
        .with_gate_multiplier(gate)
        .with_output_multiplier(output);

    let mut attention = block.attention()?.clone();
    let factor = |key: &str| json.number(&[key], 1.0);
    let input = factor("attention_in_multiplier")?;
    if input != 1.0 {
        json.only("attention_bias", &[false.into()])?; // a bias is not multiplied
    }
    // Without biases, a factor on the input is one on queries, on keys and on the output.
    attention.scale *= input * input * factor("key_multiplier")?;

    let input_of_mamba = factor("ssm_in_multiplier")?;
    let [gate, value, key, query, step] =
        multipliers(json, "ssm_multipliers")?.map(|of: f64| of * input_of_mamba);
    let factors = Mamba2Multipliers {
        gate,
        value,
        key,
        query,
        step,
    };
    let has_norm = json.flag(&["mamba_rms_norm"], false)?;
    let norm = match (has_norm, json.flag(&["mamba_norm_before_gate"], true)?) {
        (false, _) => Mamba2Norm::Absent,
        (true, true) => Mamba2Norm::BeforeGate,
        (true, false) => Mamba2Norm::AfterGate,
    };
    let width = match json.optional_size(&["mamba_d_ssm"])? {
        Some(width) => width,
        None => json.size_or(&["mamba_expand"], 2)? * block.norm.d_model,
    };
    let mamba = of_heads(json, block.norm, heads_of_width(json, width)?)?
        .with_multipliers(factors)
        .with_norm(norm);

    let outputs = [
        input * factor("attention_out_multiplier")?,
        factor("ssm_out_multiplier")?,
    ];
    block.mixer = HybridHeadsConfig::new(attention, mamba)
        .with_multipliers(outputs)
        .into();
    uniform(json, block)
}

/// Returns a list of `N` factors, which are 1 if the file has none.
fn multipliers<const N: usize>(json: &ConfigJson, key: &str) -> Result<[f64; N]> {
    let Some(factors) = json.numbers(&[key])? else {
        return Ok([1.0; N]);
    };
    let found = factors.len();
    <[f64; N]>::try_from(factors)
        .map_err(|_| json.error(&[key], format!("expected {N} factors, found {found}")))
}
