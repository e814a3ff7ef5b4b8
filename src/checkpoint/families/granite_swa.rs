//! Granite with sliding windows, dense and with experts: an attention sink for each head, and separate rotary embeddings for
//! each layer.
//!
//! transformers' `GraniteSWAAttention` and `GraniteMoeSWAModel`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/granite_swa/modeling_granite_swa.py>

use super::granite::{granite, granitemoe, shared, shared_rules, table};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let with_sinks = |family: Family| {
        let sinks = Rule::named("attention.sinks", &["self_attn.sinks"], &[]);
        family.block_rules([sinks]).initialization(|json| {
            let all = Initialization::normal(initializer_range::deviation(json, 0.02)?);
            Ok(all.with("*sinks.weight", Distribution::Constant(0.0)))
        })
    };
    let alone = table("granite_swa", |json| windowed(json, granite(json)?));
    let experts = table("granitemoe_swa", |json| {
        windowed(json, shared(json, granitemoe(json)?)?)
    });
    let expert = |part: &str, name: &str, of: Part| {
        let role = format!("feed_forward.experts.{{e}}.{part}");
        let name = format!("block_sparse_moe.experts.{name}");
        Rule::named(&role, &[&name], &[]).stacked().part(of)
    };
    let experts = experts.block_rules(shared_rules()).block_rules([
        Rule::linear("feed_forward.router", &["block_sparse_moe.router"]),
        expert("gate", "gate_up_proj", Part::Half(GateHalf::First)),
        expert("up", "gate_up_proj", Part::Half(GateHalf::Second)),
        expert("down", "down_proj", Part::Whole),
    ]);
    vec![with_sinks(alone), with_sinks(experts)]
}

fn windowed(json: &ConfigJson, stack: StackConfig) -> Result<StackConfig> {
    let n_blocks = stack.blocks.len();
    let key = "layer_rope_theta"; // 0 without rotation
    let bases = json.numbers(&[key])?;
    if let Some(bases) = &bases
        && bases.len() < n_blocks
    {
        let reason = format!("lists {} layers, expected {n_blocks}", bases.len());
        return Err(json.error(&[key], reason));
    }
    let window = json.switchable_size("sliding_window", 128)?;
    let is_sliding = json.sliding_layers(n_blocks, |i| !i.is_multiple_of(4))?;
    Ok(stack.with_each_attention(|i, attention| {
        attention.sinks = true;
        attention.window = window.filter(|_| is_sliding[i]);
        match (&bases, &mut attention.position) {
            (Some(bases), position) if bases[i] == 0.0 => *position = Position::None,
            (Some(bases), Position::Rotary(rotary)) => rotary.theta = bases[i],
            _ => {}
        }
    }))
}
