//! LFM2: gated short convolutions in most layers, and attention in the others.
//!
//! transformers' `Lfm2DecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/lfm2/modeling_lfm2.py>

use super::layer_types::FULL;
use super::llama::{decoder, uniform, unrotated_block};
use super::prelude::*;

pub(super) const CONVOLUTION: &str = "conv";

pub(super) fn family() -> Family {
    table("lfm2", lfm2)
}

/// The table for layers with short convolutions.
pub(super) fn table(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    decoder(name, config)
        .replace_block_rules([
            Rule::norm("attention_norm", &["operator_norm"]),
            Rule::linear("attention.output", &["self_attn.out_proj"]),
            Rule::norm("attention.query_norm", &["self_attn.q_layernorm"]),
            Rule::norm("attention.key_norm", &["self_attn.k_layernorm"]),
            Rule::norm("feed_forward_norm", &["ffn_norm"]),
            Rule::linear("feed_forward.gate", &["feed_forward.w1"]),
            Rule::linear("feed_forward.up", &["feed_forward.w3"]),
            Rule::linear("feed_forward.down", &["feed_forward.w2"]),
        ])
        .block_rules([
            Rule::linear("attention.convolution.input", &["conv.in_proj"]),
            Rule::linear("attention.convolution", &["conv.conv"]),
            Rule::linear("attention.convolution.output", &["conv.out_proj"]),
        ])
        .replace_stack_rules([Rule::norm("final_norm", &["embedding_norm"])])
        .renamed("rms_norm_eps", "norm_eps")
}

fn lfm2(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.with("intermediate_size", hidden_width(json)?);
    let listed = json.numbers(&["full_attn_idxs"])?;
    let stack = uniform(json, block(json)?)?;
    let kind = |i: usize| match &listed {
        Some(listed) if !listed.contains(&(i as f64)) => CONVOLUTION,
        _ => FULL,
    };
    let kinds = json.layer_types(stack.blocks.len(), &[FULL, CONVOLUTION], kind)?;
    with_convolutions(json, stack, &kinds)
}

/// Returns the block of LFM2's layers with attention.
pub(super) fn block(json: &ConfigJson) -> Result<BlockConfig> {
    // The class has none of these.
    let json = json.without("hidden_act").without("hidden_activation");
    let json = &json.without("attention_dropout");
    let mut block = unrotated_block(json, AttentionBias::NONE)?;
    block.norm.eps = json.number(&["rms_norm_eps"], 1e-5)?;
    let rotary = json.rotary(block.attention()?.head_dim, 1e6)?;
    let norm = QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head);
    let attention = block.attention_mut()?;
    attention.position = Position::Rotary(rotary);
    attention.query_key_norm = Some(norm);
    Ok(block)
}

/// Returns the feed-forward's width, two thirds of `intermediate_size` unless `block_auto_adjust_ff_dim` is false.
fn hidden_width(json: &ConfigJson) -> Result<usize> {
    let width = json.size(&["intermediate_size"])?;
    if !json.flag(&["block_auto_adjust_ff_dim"], true)? {
        return Ok(width);
    }
    let width = 2 * width / 3;
    if json
        .at("block_ffn_dim_multiplier")
        .is_some_and(Value::is_null)
    {
        return Ok(width);
    }
    let factor = json.number(&["block_ffn_dim_multiplier"], 1.0)?;
    let multiple = json.size_or(&["block_multiple_of"], 256)?.max(1);
    Ok(((factor * width as f64) as usize).next_multiple_of(multiple))
}

/// Places convolutions in the layers of that kind.
pub(super) fn with_convolutions(
    json: &ConfigJson,
    stack: StackConfig,
    kinds: &[&str],
) -> Result<StackConfig> {
    let taps = json.size_or(&["conv_L_cache"], 3)?;
    let has_bias = json.flag(&["conv_bias"], false)?;
    Ok(stack.with_each(|i, block| {
        if kinds[i] == CONVOLUTION {
            let convolution = ShortConvolutionConfig::new(block.d_model(), taps);
            block.mixer = convolution.with_bias(has_bias).into();
        }
    }))
}
