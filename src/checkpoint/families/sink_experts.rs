//! Flint and OpenAI's privacy filter: experts with attention sinks.
//!
//! transformers' `FlintDecoderLayer` and `OpenAIPrivacyFilterEncoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/flint/modeling_flint.py>

use super::gpt_oss;
use super::llama::{bias, block, decoder, uniform};
use super::mixtral::{expert_rules, stacked_experts, with_experts};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let flint = decoder("flint", flint)
        .block_rules(expert_rules())
        .block_rules(stacked_experts("mlp.experts")) // where the files are not split
        .block_rules(gated("feed_forward.shared", "mlp.shared_expert"))
        .block_rules([Rule::named(
            "attention.sinks",
            &["self_attn.softmax_offset", "self_attn.sinks"],
            &[],
        )]);
    let half = |half| Part::Half(half);
    let expert = |part: &str, of: Part| {
        let role = format!("feed_forward.experts.{{e}}.{part}");
        let (weight, bias) = ("mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj_bias");
        Rule::named(&role, &[weight], &[bias])
            .in_out()
            .stacked()
            .part(of)
    };
    let filter = gpt_oss::family()
        .named("openai_privacy_filter")
        .without_heads()
        .read_by(privacy_filter)
        .replace_block_rules([
            expert("gate", half(GateHalf::First)),
            expert("up", half(GateHalf::Second)),
        ])
        .head(HeadTask::TokenClassification, |json, stack| {
            // Named labels count.
            let json = match json.section(&["id2label"])? {
                Some(_) => json.without("num_labels"),
                None => json.with_default("num_labels", 33),
            };
            token_of_decoder("score")(&json, stack)
        });
    vec![flint, filter]
}

fn flint(json: &ConfigJson) -> Result<StackConfig> {
    let json = &match json.numbers(&["mlp_only_layers"])? {
        Some(_) => json.clone(),
        None => json.with("mlp_only_layers", json!([0, 1])),
    };
    let mut block = block(json, bias(json)?)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    block.attention_mut()?.sinks = true;
    let shared = SharedExpertConfig {
        d_ff: json.size_or(&["shared_expert_intermediate_size"], 1024)?,
        gate: false,
    };
    let stack = with_experts(json, uniform(json, block)?, Some(shared))?;
    let (last, window) = (
        stack.blocks.len() - 1,
        json.size_or(&["sliding_window"], 513)?,
    );
    let is_sliding =
        json.sliding_layers(stack.blocks.len(), |i| i >= 2 && i % 4 != 1 && i != last)?;
    let stack = stack.with_each_attention(|i, attention| match is_sliding[i] {
        true => attention.window = Some(window),
        false => attention.position = Position::None,
    });
    Ok(stack.with_each(|_, block| {
        if let Some(experts) = &mut block.feed_forward.experts {
            experts.routing.scores = RoutingScores::Sigmoid;
        }
    }))
}

fn privacy_filter(json: &ConfigJson) -> Result<StackConfig> {
    let window = json.size_or(&["sliding_window"], 128)?;
    let json = &json.without("layer_types");
    Ok(gpt_oss::config(json)?.with_each_attention(|_, attention| {
        attention.visibility = Visibility::Bidirectional;
        attention.window = Some(window);
        if let Position::Rotary(rotary) = &mut attention.position {
            rotary.pairing = RotaryPairing::Interleaved;
        }
    }))
}
