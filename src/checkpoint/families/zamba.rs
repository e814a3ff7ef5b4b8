//! Zamba: Mamba with several heads in every layer, and before some of them a transformer that these layers share.
//!
//! transformers' `ZambaHybridLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/zamba/modeling_zamba.py>

use super::mamba::{mixer, of_states, rank};
use super::mamba_mixer::before_softplus;
use super::prelude::*;
use super::shared_transformers::{rule, stack, table, transformer};

const STEM: &str = "shared_transf";

pub(super) fn family() -> Family {
    let role = |part: &str| format!("attention.selective.{part}");
    let linear = |part: &str, name: &str| Rule::linear(&role(part), &[&format!("mamba.{name}")]);
    let of_heads = |part: &str, name: &str, bias: &[&str]| {
        let role = role(&format!("heads.{{e}}.{part}"));
        Rule::named(&role, &[&format!("mamba.{name}")], bias).stacked()
    };
    let part = |part: &str, of| {
        let rule = of_heads(part, "x_proj_weight", &[]);
        rule.part(Part::Mixer(MixerLayout::DecayKeyQuery, of))
    };
    let halves = [("value", GateHalf::First), ("gate", GateHalf::Second)];
    table("zamba", zamba, STEM)
        .block_rules(
            ["gate", "up"].map(|part| rule(STEM, part, &format!("feed_forward.{part}_proj"))),
        )
        .block_rules(halves.map(|(part, half)| linear(part, "in_proj").part(Part::Alternate(half))))
        .block_rules([
            linear("value_convolution", "conv1d"),
            part("decay", MixerPart::Decay),
            part("key", MixerPart::Key),
            part("query", MixerPart::Query),
            of_heads("step", "dt_proj_weight", &["mamba.dt_proj_bias"]),
            of_heads("rate", "A_log", &[]),
            of_heads("skip", "D", &[]),
            linear("output", "out_proj"),
        ])
        .initialization(initialization)
}

fn zamba(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let norm = NormConfig::rms_norm(d_model, json.number(&["rms_norm_eps"], 1e-5)?);
    json.only("hidden_mamba_act", &["silu".into(), "swish".into()])?;
    let n_heads = json.width_or(&["n_mamba_heads"], 2)?;
    if n_heads == 1 {
        return Err(json.error(&["n_mamba_heads"], "found 1, expected several heads"));
    }
    let mamba = mixer(&json.without("hidden_act"), d_model, None)?.with_heads(n_heads);
    let period = json.width_or(&["attn_layer_period"], 6)?;
    let offset = json.size_or(&["attn_layer_offset"], 4)?;
    let transformer = transformer(json, d_model, None)?;
    stack(json, mamba, norm, &transformer, 1, |i| {
        i == 2 || i > 2 && (i - 3) % period == offset
    })
}

/// transformers' `ZambaPreTrainedModel._init_weights`.
fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let rank = rank(json, json.size(&["hidden_size"])?)?;
    let bound = 1.0 / (rank as f64).sqrt();
    let all = Initialization::normal(initializer_range::deviation(json, 0.02)?)
        .with("*selective.*step.weight", Distribution::Uniform { bound })
        .with("*selective.*step.bias", before_softplus(json)?);
    Ok(of_states(all))
}
