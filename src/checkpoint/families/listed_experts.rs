//! Decoders with experts that combine blocks of known families: DeepSeek-OCR 2's text, Mellum, HunYuan V3 and
//! A.X K1.
//!
//! transformers' `MellumDecoderLayer`, `HYV3MoE` and `AXK1MoE`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/hy_v3/modeling_hy_v3.py>

use super::deepseek::{self, corrected, softmax_scores};
use super::llama::{bias, biased_block, block, decoder, uniform};
use super::mixtral::{expert_rules, stacked_experts, weights};
use super::prelude::*;
use super::sigmoid_experts::{chosen_by_sigmoids, with_experts};

pub(super) fn families() -> Vec<Family> {
    let ocr = decoder("deepseek_ocr2_text", deepseek_ocr2)
        .block_rules(expert_rules())
        .block_rules(stacked_experts("mlp.experts")) // where the text is alone
        .block_rules(gated("feed_forward.shared", "mlp.shared_experts"));
    let mellum = decoder("mellum", mellum)
        .block_rules(expert_rules())
        .ignored(&["mtp.*"]);
    let hunyuan = chosen_by_sigmoids("hy_v3", hy_v3, "mlp.expert_bias")
        .replace_block_rules([Rule::linear("feed_forward.router", &["mlp.router.gate"])])
        .replace_block_rules(gated("feed_forward.shared", "mlp.shared_mlp"));
    let ax = corrected("axk1", axk1).block_rules([Rule::norm(
        "feed_forward_output_norm",
        &["post_mlp_layernorm", "mlp.post_mlp_layernorm"],
    )]);
    vec![ocr, mellum, hunyuan, ax]
}

fn deepseek_ocr2(json: &ConfigJson) -> Result<StackConfig> {
    json.only("mlp_bias", &[json!(false)])?; // experts would not have this bias
    let json = &json.without("head_dim"); // the heads divide the model's width
    let block = block(json, bias(json)?)?;
    let json = &json.without("norm_topk_prob");
    let stack = uniform(json, block)?;
    let is_sparse = sparse_layers(json, stack.blocks.len(), |_| true)?;
    softmax_scores(
        json,
        with_experts(json, stack, false, |i| Ok(is_sparse[i]))?,
    )
}

fn mellum(json: &ConfigJson) -> Result<StackConfig> {
    let thetas = json!({"full_attention": {"rope_theta": 500_000.0}, "sliding_attention": {"rope_theta": 10_000.0}});
    let json = &json.with_default("rope_parameters", thetas);
    let mut usual = block(&json.without("rope_parameters"), bias(json)?)?;
    usual.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(usual.norm, QueryKeyNormSpan::Head));
    let routing = RoutingConfig {
        weights: weights(json, true)?,
        ..RoutingConfig::new(json.size_or(&["num_experts_per_tok"], 8)?)
    };
    let experts = ExpertsConfig::new(
        json.size_or(&["num_local_experts", "num_experts"], 64)?,
        routing,
    );
    let d_ff = json.size_or(&["moe_intermediate_size"], 896)?;
    let window = json.switchable_size("sliding_window", 1024)?;
    let mut stack = uniform(json, usual)?;
    let n_blocks = stack.blocks.len();
    let is_sliding = json.sliding_layers(n_blocks, |_| false)?;
    let is_sparse = sparse_layers(json, n_blocks, |_| true)?;
    for (i, block) in stack.blocks.iter_mut().enumerate() {
        let kind = match is_sliding[i] {
            true => "sliding_attention",
            false => "full_attention",
        };
        let rotary =
            json.rotary_of_type(kind, "rope_theta", block.attention()?.head_dim, 10000.0)?;
        block.attention_mut()?.position = Position::Rotary(rotary);
        block.attention_mut()?.window = window.filter(|_| is_sliding[i]);
        if is_sparse[i] {
            block.feed_forward.d_ff = d_ff;
            block.feed_forward.experts = Some(experts);
        }
    }
    Ok(stack)
}

fn hy_v3(json: &ConfigJson) -> Result<StackConfig> {
    json.only("mlp_bias", &[json!(false)])?; // only some layers would have this bias
    let mut block = biased_block(json)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    let routing = RoutingConfig {
        scores: RoutingScores::Sigmoid,
        scale: json.number(&["router_scaling_factor"], 2.826)?,
        ..RoutingConfig::renormalized(json.size_or(&["num_experts_per_tok"], 8)?)
    };
    let d_ff = json.size_or(&["moe_intermediate_size"], 1536)?;
    let shared = SharedExpertConfig {
        d_ff: d_ff.saturating_mul(json.size_or(&["num_shared_experts"], 1)?),
        gate: false,
    };
    let n_experts = json.size_or(&["num_experts", "num_local_experts"], 192)?;
    let experts = ExpertsConfig::new(n_experts, routing)
        .with_correction(true)
        .with_shared(Some(shared));
    let stack = uniform(json, block)?;
    let is_sparse = sparse_layers(json, stack.blocks.len(), |i| i > 0)?;
    Ok(stack.with_each(|i, block| {
        if is_sparse[i] {
            block.feed_forward.d_ff = d_ff;
            block.feed_forward.experts = Some(experts);
        }
    }))
}

/// Reads A.X K1: DeepSeek-V3 with a norm on the output of each mixture of experts.
fn axk1(json: &ConfigJson) -> Result<StackConfig> {
    let first = json.size_or(&["first_k_dense_replace"], 1)?;
    let step = json.size_or(&["moe_layer_freq"], 1)?.max(1);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    let is_sparse = sparse_layers(json, n_blocks, |i| i >= first && i.is_multiple_of(step))?;
    let stack = deepseek::deepseek_v3_with(json, |i| Ok(is_sparse[i]))?;
    Ok(stack.with_each(|_, block| {
        if block.feed_forward.experts.is_some() {
            block.feed_forward_placement = NormPlacement::Sandwich;
        }
    }))
}

/// Returns for each layer whether `mlp_layer_types` says that it has experts, or without that list, `default`.
///
/// # Errors
/// If the list has another length.
pub(super) fn sparse_layers(
    json: &ConfigJson,
    n_blocks: usize,
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let key = ["mlp_layer_types"];
    let Some(kinds) = json.texts(&key)? else {
        return Ok((0..n_blocks).map(default).collect());
    };
    match kinds.len() == n_blocks {
        true => Ok(kinds.iter().map(|kind| kind == "sparse").collect()),
        false => Err(json.error(&key, format!("{} kinds for {n_blocks} layers", kinds.len()))),
    }
}
