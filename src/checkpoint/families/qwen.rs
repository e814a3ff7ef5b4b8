//! Qwen 1, 2 and 3: Llama's blocks with their own biases or norms, and sliding windows in some layers. Qwen 1 has its own names.
//!
//! `QWenBlock`: <https://huggingface.co/Qwen/Qwen-7B/blob/main/modeling_qwen.py>,
//! transformers' `Qwen2DecoderLayer` and `Qwen3DecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen3/modeling_qwen3.py>

use super::llama::{bias, block, decoder, decoder_of_hub, prefix_by_head, uniform};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let alone = [
        decoder("qwen2", |json| qwen2(with_mask(json)?)),
        decoder("qwen3", |json| qwen3(with_mask(json)?)),
    ];
    let mut all: Vec<Family> = alone.map(|table| table.new_names(prefix_by_head)).into();
    // https://huggingface.co/XiaomiMiMo/MiMo-7B-Base: Qwen 2 with a layer that predicts a further token.
    all.push(decoder("mimo", qwen2).like_class("qwen2"));
    all.push(first());
    all
}

/// The table for Qwen 1.
fn first() -> Family {
    decoder_of_hub("qwen", qwen)
        .prefixes(&["transformer.", ""])
        .block("h.{i}.")
        .replace_block_rules(Rule::fused_attention(&["attn.c_attn"], FusedLayout::Blocks))
        .replace_block_rules([
            Rule::norm("attention_norm", &["ln_1"]),
            Rule::linear("attention.output", &["attn.c_proj"]),
            Rule::norm("feed_forward_norm", &["ln_2"]),
            Rule::linear("feed_forward.gate", &["mlp.w2"]),
            Rule::linear("feed_forward.up", &["mlp.w1"]),
            Rule::linear("feed_forward.down", &["mlp.c_proj"]),
        ])
        .replace_stack_rules([Rule::norm("final_norm", &["ln_f"])])
        .without_embeddings_and_heads()
        .end_rules([
            Rule::linear("embeddings.word", &["wte"]),
            Rule::linear("causal_lm.output", &["lm_head"]),
        ])
        .embeddings(|json, stack| {
            let dropout = json.number(&["emb_dropout_prob"], 0.0)?;
            Ok(token_embeddings(json, stack)?.with_dropout(dropout).into())
        })
        .head(HeadTask::CausalLm, causal_lm)
        .renamed("head_dim", "kv_channels")
        .renamed("rms_norm_eps", "layer_norm_epsilon")
        .renamed("rope_theta", "rotary_emb_base")
        .renamed("attention_dropout", "attn_dropout_prob")
        .outside(&["*wte.*", "lm_head.*"])
}

fn qwen(json: &ConfigJson) -> Result<StackConfig> {
    for key in ["use_dynamic_ntk", "use_logn_attn"] {
        if json.flag(&[key], true)? {
            let reason = "changes queries and keys after `seq_length` positions, which is not supported; with false, \
                          earlier positions have the same results";
            return Err(json.error(&[key], reason));
        }
    }
    for key in ["no_bias", "scale_attn_weights"] {
        json.only(key, &[json!(true)])?;
    }
    json.only("rotary_pct", &[json!(1.0), json!(1)])?;
    // The width of both products of the gated feed-forward together.
    let d_ff = json.size(&["intermediate_size"])? / 2;
    let block = block(
        &json.with("intermediate_size", d_ff),
        AttentionBias::new(true, false),
    )?;
    uniform(json, block)
}

/// Refuses a file whose mask is decided by code on the Hub, and not by `is_causal`.
fn with_mask(json: &ConfigJson) -> Result<&ConfigJson> {
    let code = json.section(&["auto_map"])?;
    let class = code.map(|code| code.text(&["AutoModel"])).transpose()?;
    let is_both_ways = json.flag(&["use_bidirectional_attention"], false)?;
    let decides = match class.flatten() {
        Some(class) => class,
        None if is_both_ways => "use_bidirectional_attention".to_string(),
        None => return Ok(json),
    };
    if json.at("is_causal").is_some() {
        return Ok(json);
    }
    let reason = format!(
        "missing, while {decides} decides about the mask; set it to false if each token attends to all others, as in \
         gte-Qwen2 and voyage-4-nano, or else to true"
    );
    Err(json.error(&["is_causal"], reason))
}

pub(super) fn qwen2(json: &ConfigJson) -> Result<StackConfig> {
    let stack = uniform(json, block(json, AttentionBias::new(true, false))?)?;
    with_windows(json, stack, |i, first| i >= first)
}

pub(super) fn qwen3(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, bias(json)?)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    with_windows(json, uniform(json, block)?, |i, first| i >= first)
}

/// Sets sliding windows, if enabled, in the layers that `layer_types` names. Without it, `default` decides from a layer's
/// index and `max_window_layers`.
pub(super) fn with_windows(
    json: &ConfigJson,
    stack: StackConfig,
    default: fn(usize, usize) -> bool,
) -> Result<StackConfig> {
    if !json.flag(&["use_sliding_window"], false)? {
        if json
            .sliding_layers(stack.blocks.len(), |_| false)?
            .contains(&true)
        {
            let reason = "contains sliding_attention, although use_sliding_window is false";
            return Err(json.error(&["layer_types"], reason));
        }
        return Ok(stack);
    }
    sliding(json, stack, 28, default)
}

/// Sets sliding windows in the layers that `layer_types` names. Without it, in layers from `max_window_layers` on.
pub(super) fn sliding_from(
    json: &ConfigJson,
    stack: StackConfig,
    first: usize,
) -> Result<StackConfig> {
    sliding(json, stack, first, |i, first| i >= first)
}

fn sliding(
    json: &ConfigJson,
    stack: StackConfig,
    max_layers: usize,
    default: fn(usize, usize) -> bool,
) -> Result<StackConfig> {
    let window = json.switchable_size("sliding_window", 4096)?;
    let max_layers = json.size_or(&["max_window_layers"], max_layers)?;
    let is_sliding = json.sliding_layers(stack.blocks.len(), |i| default(i, max_layers))?;
    Ok(stack.with_each_attention(|i, of| of.window = window.filter(|_| is_sliding[i])))
}
