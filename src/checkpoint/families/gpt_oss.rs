//! gpt-oss: Llama's blocks with an attention sink for each head, a sliding window in every other layer, and experts with
//! biases and bounded gates. All experts are stacked, with gate and up interleaved.
//!
//! transformers' `GptOssDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gpt_oss/modeling_gpt_oss.py>

use super::llama::{bias, block, decoder, uniform};
use super::mixtral::expert_rules;
use super::prelude::*;

pub(super) fn family() -> Family {
    let expert = |part: &str, name: &str, of: Part| {
        let role = format!("feed_forward.experts.{{e}}.{part}");
        let weight = format!("mlp.experts.{name}");
        let rule = Rule::named(&role, &[&weight], &[&format!("{weight}_bias")]);
        rule.in_out().stacked().part(of)
    };
    decoder("gpt_oss", config)
        .block_rules([
            Rule::named("attention.sinks", &["self_attn.sinks"], &[]),
            Rule::linear("feed_forward.router", &["mlp.router"]),
            expert("gate", "gate_up_proj", Part::Alternate(GateHalf::First)),
            expert("up", "gate_up_proj", Part::Alternate(GateHalf::Second)),
            expert("down", "down_proj", Part::Whole),
        ])
        .block_rules(expert_rules()) // of GGUF files
        .initialization(|json| {
            let deviation = initializer_range::deviation(json, 0.02)?;
            let drawn = Distribution::Normal { deviation };
            let all = Initialization::normal(deviation);
            Ok(all.with("*feed_forward.router.bias", drawn))
        })
}

pub(super) fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("swiglu_alpha", &[json!(1.702)])?; // quick GELU's constant
    let stretched = json!({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096});
    let json = match json.rotary_section()? {
        Some(_) => json,
        None => &json.with_default("rope_parameters", stretched),
    };
    let mut block = block(json, bias(json)?)?;
    block.attention_mut()?.sinks = true;
    let clamp = GateClamp {
        limit: json.number(&["swiglu_limit"], 7.0)?,
        offset: 1.0,
    };
    let routing = RoutingConfig::renormalized(json.size_or(&["num_experts_per_tok"], 4)?);
    let n_experts = json.size_or(&["num_local_experts", "num_experts"], 128)?;
    let experts = ExpertsConfig::new(n_experts, routing).with_router_bias(true);
    block.feed_forward = block
        .feed_forward
        .with_activation(Activation::QuickGelu) // independent of `hidden_act`
        .with_clamp(Some(clamp))
        .with_bias(true)
        .with_experts(Some(experts));
    let window = json.switchable_size("sliding_window", 128)?;
    let stack = uniform(json, block)?;
    let is_sliding = json.sliding_layers(stack.blocks.len(), |i| i.is_multiple_of(2))?;
    Ok(stack
        .with_each_attention(|i, attention| attention.window = window.filter(|_| is_sliding[i])))
}
