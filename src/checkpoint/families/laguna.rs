//! Laguna: Llama's blocks with a softplus gate on each head's result, a number of heads and a rotation of its own for each kind of
//! layer, and experts selected by sigmoids.
//!
//! transformers' `LagunaDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/laguna/modeling_laguna.py>

use super::listed_experts::sparse_layers;
use super::llama::{bias, decoder, uniform, unrotated_block};
use super::mixtral::expert_rules;
use super::prelude::*;
use super::sigmoid_experts::with_experts;

pub(super) fn family() -> Family {
    let shared = ["gate", "up", "down"].map(|part| {
        let [hub, class] =
            ["shared_expert", "shared_experts"].map(|of| format!("mlp.{of}.{part}_proj"));
        Rule::linear(&format!("feed_forward.shared.{part}"), &[&hub, &class])
    });
    let correction = ["experts", "gate"].map(|of| format!("mlp.{of}.e_score_correction_bias"));
    let [hub, class] = &correction;
    decoder("laguna", laguna)
        .block_rules([Rule::linear("attention.gate", &["self_attn.g_proj"])])
        .block_rules(expert_rules())
        .block_rules(shared)
        .block_rules([Rule::named(
            "feed_forward.router.correction",
            &[hub, class],
            &[],
        )])
        .renamed("n_routed_experts", "num_experts")
        .renamed("routed_scaling_factor", "moe_routed_scaling_factor")
        .class_sizes(&["num_experts_per_tok", "moe_intermediate_size"])
}

fn laguna(json: &ConfigJson) -> Result<StackConfig> {
    json.only("moe_apply_router_weight_on_input", &[json!(false)])?;
    json.only("moe_router_logit_softcapping", &[json!(0.0), json!(0)])?;
    let mut block = unrotated_block(json, bias(json)?)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    let gates = [
        json!(true),
        json!("per-head"),
        json!("per-element"),
        json!(false),
    ];
    json.only("gating", &gates)?;
    let span = match json.at("gating") {
        None | Some(Value::Null | Value::Bool(true)) => OutputGateSpan::Head,
        Some(gating) if *gating == gates[1] => OutputGateSpan::Head,
        _ => OutputGateSpan::Channel, // with `false` too, in transformers' class
    };
    block.attention_mut()?.output_gate = Some(OutputGate::new(Activation::Softplus, span));
    let mut stack = uniform(json, block)?;
    let n_blocks = stack.blocks.len();
    let window = json.optional_size(&["sliding_window"])?.unwrap_or(512);
    let is_sliding = json.sliding_layers(n_blocks, |_| false)?;
    heads_of_layers(json, &mut stack)?;
    for (block, is_sliding) in stack.blocks.iter_mut().zip(is_sliding) {
        let attention = block.attention_mut()?;
        attention.window = is_sliding.then_some(window);
        let rotary = rotary(json, is_sliding, attention.head_dim)?;
        attention.position = Position::Rotary(rotary);
    }
    let is_sparse = sparse_layers(json, n_blocks, |i| i > 0)?;
    // The class has none of these keys.
    let experts = json.without("n_group").without("norm_topk_prob");
    let experts = experts.with_default("n_shared_experts", 1);
    let mut stack = with_experts(&experts, stack, true, |i| Ok(is_sparse[i]))?;
    let shared = json.size_or(&["shared_expert_intermediate_size"], 512)?;
    for block in &mut stack.blocks {
        if let Some(experts) = &mut block.feed_forward.experts {
            experts.shared = Some(SharedExpertConfig::new(shared, false));
        }
    }
    Ok(stack)
}

/// Applies the number of query heads of each layer.
fn heads_of_layers(json: &ConfigJson, stack: &mut StackConfig) -> Result<()> {
    let key = "num_attention_heads_per_layer";
    let Some(heads) = json.parsed::<Option<Vec<usize>>>(key)?.flatten() else {
        return Ok(());
    };
    if heads.len() != stack.blocks.len() {
        let reason = format!(
            "lists {} layers, expected {}",
            heads.len(),
            stack.blocks.len()
        );
        return Err(json.error(&[key], reason));
    }
    for (block, heads) in stack.blocks.iter_mut().zip(heads) {
        block.attention_mut()?.n_heads = heads;
    }
    Ok(())
}

/// Reads the rotation of one kind of layer, for a share of each head.
fn rotary(json: &ConfigJson, is_sliding: bool, head_dim: usize) -> Result<RotaryConfig> {
    let (kind, theta, share) = match is_sliding {
        true => ("sliding_attention", 10000.0, 1.0),
        false => ("full_attention", 500_000.0, 0.5),
    };
    let key = ["rope_parameters"];
    let rotary = match json.section(&key)? {
        None => json.partial_rotary_of(None, head_dim, [share, theta]),
        Some(parameters) => match parameters.section(&[kind])? {
            // transformers reads `truncate` beside the sections of the kinds.
            Some(own) => {
                let own = own.without("truncate");
                json.partial_rotary_of(Some(&own), head_dim, [1.0, theta])
            }
            None => Err(json.error(&key, format!("{kind:?} is missing"))),
        },
    };
    Ok(rotary?.rounded_up())
}
