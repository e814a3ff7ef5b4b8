//! The parts that decoders with Mamba-2 share: the rules for a mixer's tensors, its keys, the types of layers and the
//! initialization.
//!
//! transformers' `BambaMixer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bamba/modeling_bamba.py>

use super::prelude::*;

/// Names the keys that Mamba-2 and Nemotron-H share as hybrids do.
pub(super) fn renamed(family: Family) -> Family {
    family
        .renamed("mamba_n_groups", "n_groups")
        .renamed("mamba_d_conv", "conv_kernel")
        .renamed("mamba_conv_bias", "use_conv_bias")
        .renamed("mamba_proj_bias", "use_bias")
}

/// Rules for a mixer under `stem`.
pub(super) fn rules(stem: &str) -> Vec<Rule> {
    let parts = [
        ("gate", MixerPart::Gate),
        ("value", MixerPart::Value),
        ("key", MixerPart::Key),
        ("query", MixerPart::Query),
        ("decay", MixerPart::Decay),
    ];
    let named = |role: &str, name: &str| {
        Rule::named(
            &format!("attention.mamba.{role}"),
            &[&format!("{stem}.{name}")],
            &[],
        )
    };
    let projected = parts.map(|(role, part)| {
        let rule = named(role, "in_proj.weight");
        rule.part(Part::Mixer(MixerLayout::GateValueKeyQueryDecay, part))
    });
    let convolved = parts[1..4].iter().map(|(role, part)| {
        let role = format!("attention.mamba.{role}_convolution");
        let rule = Rule::linear(&role, &[&format!("{stem}.conv1d")]);
        rule.part(Part::Mixer(MixerLayout::ValueKeyQuery, *part))
    });
    let bias = Rule::named("attention.mamba.decay", &[], &[&format!("{stem}.dt_bias")]);
    let mut rules: Vec<Rule> = projected.into_iter().chain(convolved).collect();
    rules.extend([
        bias,
        named("rate", "A_log"),
        named("skip", "D"),
        Rule::norm("attention.mamba.norm", &[&format!("{stem}.norm")]),
        Rule::linear("attention.mamba.output", &[&format!("{stem}.out_proj")]),
    ]);
    rules
}

/// transformers' `BambaPreTrainedModel._init_weights`.
pub(super) fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let all = Initialization::normal(initializer_range::deviation(json, 0.02)?);
    Ok(with_steps(all, Distribution::Constant(1.0)))
}

/// Adds the distributions of the parameters with a value for each head; `steps` is that of the steps' biases.
pub(super) fn with_steps(all: Initialization, steps: Distribution) -> Initialization {
    all.with("*mamba.decay.bias", steps)
        .with("*mamba.skip.weight", Distribution::Constant(1.0))
        .with("*mamba.rate.weight", Distribution::LogOfCount)
}

/// Returns the distribution of the steps' biases.
pub(super) fn before_softplus(json: &ConfigJson) -> Result<Distribution> {
    Ok(Distribution::BeforeSoftplus {
        low: json.number(&["time_step_min"], 1e-3)?,
        high: json.number(&["time_step_max"], 0.1)?,
        floor: json.number(&["time_step_floor"], 1e-4)?,
    })
}

/// Returns the distributions of Mamba-2's and Nemotron-H's mixers, whose output weights are uniform within `1/√share`.
pub(super) fn drawn(
    json: &ConfigJson,
    all: Initialization,
    share: usize,
) -> Result<Initialization> {
    let bound = 1.0 / (share as f64).sqrt();
    let steps = before_softplus(json)?;
    let all = all.with("*mamba.output.weight", Distribution::Uniform { bound });
    Ok(with_steps(all, steps))
}

/// Returns the mixer of a configuration with the keys `mamba_*`, where heads are `mamba_expand` times the norm's width.
pub(super) fn mixer(json: &ConfigJson, norm: NormConfig) -> Result<Mamba2Config> {
    let width = json.size_or(&["mamba_expand"], 2)? * norm.d_model;
    of_heads(json, norm, heads_of_width(json, width)?)
}

/// Returns the number of heads, which are `width` wide together, and their width.
pub(super) fn heads_of_width(json: &ConfigJson, width: usize) -> Result<[usize; 2]> {
    let n_heads = json.width_or(&["mamba_n_heads"], 128)?;
    let head_dim = match json.at("mamba_d_head") {
        None | Some(Value::Null) => width / n_heads,
        Some(Value::String(auto)) if auto == "auto" => width / n_heads,
        Some(_) => json.size(&["mamba_d_head"])?,
    };
    if n_heads * head_dim != width {
        let reason = format!(
            "{n_heads} heads of {head_dim} are not {width} wide, mamba_expand times hidden_size, or mamba_d_ssm"
        );
        return Err(json.error(&["mamba_d_head"], reason));
    }
    Ok([n_heads, head_dim])
}

/// Returns the mixer with a number of heads and their width.
pub(super) fn of_heads(
    json: &ConfigJson,
    norm: NormConfig,
    heads: [usize; 2],
) -> Result<Mamba2Config> {
    // The projection to the steps would have a bias beside `dt_bias`.
    json.only("mamba_proj_bias", &[false.into()])?;
    let steps = match json.at("time_step_limit") {
        None | Some(Value::Null) => Some((0.0, None)),
        Some(limits) => limits.as_array().and_then(|of| match &of[..] {
            [low, high] => Some((low.as_f64()?, bound(high)?)),
            _ => None,
        }),
    };
    let Some((min_step, max_step)) = steps else {
        let reason = "expected a smallest and a largest step";
        return Err(json.error(&["time_step_limit"], reason));
    };
    let state_dim = json.size_or(&["mamba_d_state"], 256)?;
    Ok(Mamba2Config::new(norm.d_model, heads, state_dim)
        .with_groups(json.size_or(&["mamba_n_groups"], 1)?)
        .with_taps(json.size_or(&["mamba_d_conv"], 4)?)
        .with_convolution_bias(json.flag(&["mamba_conv_bias"], !json.is_null("mamba_conv_bias"))?)
        .with_min_step(min_step)
        .with_max_step(max_step)
        .with_norm_eps(norm.eps))
}

/// Returns an upper limit, or `Some(None)` for infinity, which transformers writes in its own way.
fn bound(value: &Value) -> Option<Option<f64>> {
    let infinity = json!({"__float__": "Infinity"});
    match *value == infinity {
        true => Some(None),
        false => value.as_f64().map(Some),
    }
}
