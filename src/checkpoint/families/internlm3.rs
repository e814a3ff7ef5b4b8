//! InternLM 1, 2 and 3 and IQuest-Coder: Llama's blocks with other names and defaults. InternLM 2 packs queries, keys and values
//! by key head.
//!
//! `InternLM2Attention`: <https://huggingface.co/internlm/internlm2-7b/blob/main/modeling_internlm2.py>, `InternLMAttention`:
//! <https://huggingface.co/internlm/internlm-7b/blob/main/modeling_internlm.py>,
//! transformers' `InternLM3Config`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/internlm3/configuration_internlm3.py>, and
//! `IQuestCoderConfig`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/iquestcoder/configuration_iquestcoder.py>

use super::llama::{block, decoder, decoder_of_hub, llama, prefix_by_head, uniform};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let table = |name: &str, config| decoder(name, config).new_names(prefix_by_head);
    vec![
        table("internlm3", internlm3),
        table("iquestcoder", iquestcoder),
        decoder_of_hub("internlm", internlm),
        internlm2(),
    ]
}

fn internlm2() -> Family {
    decoder_of_hub("internlm2", |json| uniform(json, block(json, bias(json)?)?))
        .replace_block_rules(Rule::fused_attention(
            &["attention.wqkv"],
            FusedLayout::PerGroup,
        ))
        .replace_block_rules([
            Rule::norm("attention_norm", &["attention_norm"]),
            Rule::linear("attention.output", &["attention.wo"]),
            Rule::norm("feed_forward_norm", &["ffn_norm"]),
            Rule::linear("feed_forward.gate", &["feed_forward.w1"]),
            Rule::linear("feed_forward.up", &["feed_forward.w3"]),
            Rule::linear("feed_forward.down", &["feed_forward.w2"]),
        ])
        .replace_end_rules([
            Rule::linear("embeddings.word", &["tok_embeddings"]),
            Rule::linear("causal_lm.output", &["output"]),
        ])
        .outside(&["*tok_embeddings.*", "output.*"])
}

/// Returns `bias` for all four projections of an attention.
fn bias(json: &ConfigJson) -> Result<AttentionBias> {
    let has_bias = json.flag(&["bias"], true)?;
    Ok(AttentionBias::new(has_bias, has_bias))
}

fn internlm(json: &ConfigJson) -> Result<StackConfig> {
    let stack = uniform(json, block(json, bias(json)?)?)?;
    let usual = json!({"base": 10000, "type": "dynamic"});
    let json = json.with_default("rotary", usual);
    let Some(rotary) = json.section(&["rotary"])? else {
        return Ok(stack);
    };
    let theta = rotary.number(&["base"], 10000.0)?;
    let scaling = match rotary.text(&["type"])?.as_deref() {
        Some("origin") => RotaryScaling::None,
        Some("dynamic") => RotaryScaling::DynamicNtk {
            factor: rotary.number(&["scaling_factor"], 1.0)?,
            max_positions: json.size(&["max_position_embeddings"])?,
        },
        other => {
            let found = other.unwrap_or_default();
            let reason = format!("{found:?} is not supported, only \"origin\" or \"dynamic\"");
            return Err(rotary.error(&["type"], reason));
        }
    };
    Ok(stack.with_each_attention(|_, attention| {
        let head_rotary = RotaryConfig::new(attention.head_dim, theta);
        attention.position = Position::Rotary(head_rotary.with_scaling(scaling.clone()));
    }))
}

fn internlm3(json: &ConfigJson) -> Result<StackConfig> {
    let attention_bias = json.flag(&["attention_bias", "qkv_bias"], false)?;
    if json.flag(&["mlp_bias", "bias"], false)? != attention_bias {
        let reason = "attention and feed-forward must both have biases or both have none, as in transformers";
        return Err(json.error(&["qkv_bias", "bias"], reason));
    }
    let json = json.with_default("attention_bias", attention_bias);
    llama(&json.with_default("mlp_bias", attention_bias))
}

fn iquestcoder(json: &ConfigJson) -> Result<StackConfig> {
    json.only("clip_qkv", &[Value::Null])?;
    json.only("use_sliding_window", &[json!(false)])?;
    llama(json)
}
