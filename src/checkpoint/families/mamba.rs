//! Mamba, whose layers are mixers alone.
//!
//! transformers' `MambaBlock`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/mamba/modeling_mamba.py>

use super::mamba_mixer::{before_softplus, renamed};
use super::prelude::*;

pub(super) fn family() -> Family {
    table("mamba", |json| stack(json, None))
}

/// The table of a decoder with Mamba's layers alone.
pub(super) fn table(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    alone(name, config)
        .block_rules(rules("mixer"))
        .initialization(initialization)
        .renamed("mamba_dt_rank", "time_step_rank")
}

/// The table of a decoder whose layers are mixers alone.
pub(super) fn alone(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    let family = Family::new(name, &[name], config)
        .prefixes(&["backbone.", ""])
        .block("layers.{i}.")
        .block_rules([Rule::norm("attention_norm", &["norm"])])
        .stack_rules([Rule::norm("final_norm", &["norm_f"])])
        .decoder_embeddings_and_heads("embeddings", "classifier")
        .renamed("mamba_d_state", "state_size")
        .renamed("mamba_expand", "expand");
    renamed(family)
}

/// Rules for a mixer under `stem`.
pub(super) fn rules(stem: &str) -> Vec<Rule> {
    use MixerLayout::{DecayKeyQuery, ValueGate};
    let parts = [
        ("value", "in_proj", ValueGate, MixerPart::Value),
        ("gate", "in_proj", ValueGate, MixerPart::Gate),
        ("decay", "x_proj", DecayKeyQuery, MixerPart::Decay),
        ("key", "x_proj", DecayKeyQuery, MixerPart::Key),
        ("query", "x_proj", DecayKeyQuery, MixerPart::Query),
    ];
    let role = |part: &str| format!("attention.selective.{part}");
    let name = |part: &str| format!("{stem}.{part}");
    let projected = parts.map(|(part, file, layout, of)| {
        let rule = Rule::linear(&role(part), &[&name(file)]);
        rule.part(Part::Mixer(layout, of))
    });
    let own = [
        Rule::linear(&role("value_convolution"), &[&name("conv1d")]),
        Rule::linear(&role("step"), &[&name("dt_proj")]),
        Rule::named(&role("rate"), &[&name("A_log")], &[]),
        Rule::named(&role("skip"), &[&name("D")], &[]),
        Rule::linear(&role("output"), &[&name("out_proj")]),
    ];
    projected.into_iter().chain(own).collect()
}

/// Returns a stack of mixers with these norms inside.
pub(super) fn stack(json: &ConfigJson, inside: Option<NormConfig>) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let norm = NormConfig::rms_norm(d_model, json.number(&["layer_norm_epsilon"], 1e-5)?);
    let block = BlockConfig::of_mixer(mixer(json, d_model, inside)?, norm);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}

/// Returns the mixer of a configuration with the keys `mamba_*`.
pub(super) fn mixer(
    json: &ConfigJson,
    d_model: usize,
    inside: Option<NormConfig>,
) -> Result<MambaConfig> {
    json.only("mamba_proj_bias", &[false.into()])?;
    json.only("hidden_act", &["silu".into(), "swish".into()])?;
    let d_inner = json.size_or(&["mamba_expand"], 2)? * d_model;
    let state_dim = json.size_or(&["mamba_d_state"], 16)?;
    let mamba = MambaConfig::new(d_model, d_inner, state_dim, rank(json, d_model)?);
    Ok(mamba
        .with_taps(json.size_or(&["mamba_d_conv"], 4)?)
        .with_convolution_bias(json.flag(&["mamba_conv_bias"], true)?)
        .with_norm(inside))
}

/// Returns the width from which steps are projected: a sixteenth of the model's, unless the file says another.
pub(super) fn rank(json: &ConfigJson, d_model: usize) -> Result<usize> {
    match json.at("mamba_dt_rank") {
        None => Ok(d_model.div_ceil(16)),
        Some(Value::String(auto)) if auto == "auto" => Ok(d_model.div_ceil(16)),
        Some(_) => json.size(&["mamba_dt_rank"]),
    }
}

/// transformers' `MambaPreTrainedModel._init_weights`.
fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let d_model = json.size(&["hidden_size"])?;
    let d_inner = json.size_or(&["mamba_expand"], 2)? * d_model;
    let taps = json.size_or(&["mamba_d_conv"], 4)?;
    let layers = match json.flag(&["rescale_prenorm_residual"], false)? {
        true => json.n_blocks(&["num_hidden_layers"])?,
        false => 1,
    };
    let uniform = |n: usize| Distribution::Uniform {
        bound: 1.0 / (n as f64).sqrt(),
    };
    let deviation = initializer_range::deviation(json, 0.1)?;
    let scale = json.number(&["time_step_scale"], 1.0)?;
    let step = scale / (rank(json, d_model)? as f64).sqrt();
    let schemes = ["random", "constant"].map(Value::from);
    json.only("time_step_init_scheme", &schemes)?;
    let steps = match json.text(&["time_step_init_scheme"])?.as_deref() {
        Some("constant") => Distribution::Constant(step),
        _ => Distribution::Uniform { bound: step },
    };
    let all = Initialization::normal(deviation)
        .with("*_convolution.weight", uniform(taps))
        .with("*selective.output.weight", uniform(d_inner * layers))
        .with("*selective.step.weight", steps)
        .with("*selective.step.bias", before_softplus(json)?);
    Ok(of_states(all))
}

/// Adds the distributions of the states' rates and of the factors beside them.
pub(super) fn of_states(all: Initialization) -> Initialization {
    all.with("*selective*.rate.weight", Distribution::LogOfCount)
        .with("*selective*.skip.weight", Distribution::Constant(1.0))
}
