//! The feed-forwards of Nomic's own code: with a gate or without, and in some blocks a mixture of experts, whose matrices follow one
//! another in one tensor.
//!
//! `NomicBertMLP` and `NomicMoELayer`: <https://huggingface.co/nomic-ai/nomic-bert-2048/blob/main/modeling_hf_nomic_bert.py>

use super::prelude::*;

/// Rules for a router and its experts.
pub(super) fn expert_rules() -> [Rule; 6] {
    let expert = |part: &str, name: &str| {
        Rule::named(&format!("feed_forward.experts.{{e}}.{part}"), &[name], &[]).joined()
    };
    // In GGUF files, an expert's matrices are its own.
    let own = |part: &str, name: &str| {
        Rule::linear(&format!("feed_forward.experts.{{e}}.{part}"), &[name])
    };
    [
        Rule::linear("feed_forward.router", &["mlp.router.layer"]),
        expert("up", "mlp.experts.mlp.w1"),
        expert("down", "mlp.experts.mlp.w2").in_out(),
        own("up", "mlp.experts.{e}.w1"),
        own("down", "mlp.experts.{e}.w2"),
        Rule::named("feed_forward.output_bias", &["mlp.experts.bias"], &[]),
    ]
}

/// Returns the activation of a feed-forward without a gate, which only the code on the Hub has.
pub(super) fn plain(json: &ConfigJson) -> Result<Option<Activation>> {
    let keys = ["activation_function"];
    match json.text(&keys)? {
        Some(name) if !name.ends_with("glu") => json.activation(&keys, Activation::Gelu).map(Some),
        _ => Ok(None),
    }
}

/// Returns the activation of a gate.
pub(super) fn gate(json: &ConfigJson) -> Result<Activation> {
    let keys = ["activation_function"];
    if json.at("hidden_act").is_some() {
        return json.activation(&["hidden_act"], Activation::Silu);
    }
    match json.text(&keys)?.as_deref() {
        None | Some("swiglu") => Ok(Activation::Silu),
        Some("geglu") => Ok(Activation::Gelu),
        Some(other) => {
            let reason =
                format!("{other:?} is not supported, only \"swiglu\", \"geglu\" or an activation");
            Err(json.error(&keys, reason))
        }
    }
}

/// Puts experts into every `moe_every_n_layers`-th block, from the second one on.
pub(super) fn with_experts(json: &ConfigJson, stack: StackConfig) -> Result<StackConfig> {
    let key = "moe_every_n_layers";
    let every = json.number(&[key], 0.0)? as usize;
    if every == 0 {
        return Ok(stack);
    }
    for (key, usual) in [
        ("expert_choice_router", json!(false)),
        ("moe_normalize_expert_weights", json!(false)),
        ("num_shared_experts", json!(0)),
    ] {
        json.only(key, &[usual])?;
    }
    if plain(json)?.is_none() {
        let reason =
            "experts with a gate are not supported, only an activation_function without one";
        return Err(json.error(&[key], reason));
    }
    let routing = RoutingConfig::new(json.size_or(&["moe_top_k"], 1)?);
    // llama.cpp's converter leaves the bias out.
    let has_bias = json.flag(&["experts_bias"], true)?;
    let experts =
        ExpertsConfig::new(json.size(&["num_experts"])?, routing).with_output_bias(has_bias);
    Ok(stack.with_each(|i, block| {
        if i % every == 1 {
            let plain = block.feed_forward.clone().with_bias(false);
            block.feed_forward = plain.with_experts(Some(experts));
        }
    }))
}
