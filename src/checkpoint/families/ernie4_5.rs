//! ERNIE 4.5: Llama's blocks with interleaved rotary embeddings, dense or with experts. A softmax with learned corrections
//! selects the experts.
//!
//! transformers' `Ernie4_5DecoderLayer` and `Ernie4_5_MoeDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/ernie4_5_moe/modeling_ernie4_5_moe.py>

use super::glm::interleaved;
use super::llama::{block, decoder, uniform};
use super::mixtral::expert_rules;
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let correction = "mlp.moe_statics.e_score_correction_bias";
    vec![
        decoder("ernie4_5", dense),
        decoder("ernie4_5_moe", moe)
            .block_rules(expert_rules())
            .block_rules(gated("feed_forward.shared", "mlp.shared_experts"))
            .block_rules([Rule::with_leading_ones(
                "feed_forward.router.correction",
                &[correction],
                1,
            )]),
    ]
}

fn dense(json: &ConfigJson) -> Result<StackConfig> {
    let has_bias = json.flag(&["use_bias"], false)?;
    let mut block = block(json, AttentionBias::new(has_bias, has_bias))?;
    block.feed_forward = block.feed_forward.with_bias(has_bias);
    block.attention_mut()?.dropout = 0.0; // independent of the file
    let rotary = json.rotary(block.attention()?.head_dim, 5e5)?;
    uniform(json, interleaved(block, rotary)?)
}

fn moe(json: &ConfigJson) -> Result<StackConfig> {
    json.only("use_bias", &[json!(false)])?; // only the shared experts would have a bias
    json.only("moe_norm_min", &[json!(1e-12)])?; // no sum of selected scores is smaller
    let stack = dense(json)?;
    let routing = RoutingConfig::renormalized(json.size_or(&["moe_k", "num_experts_per_tok"], 6)?);
    let d_ff = json.size_or(&["moe_intermediate_size"], 1536)?;
    let n_shared = json.size_or(&["moe_num_shared_experts"], 2)?;
    let shared = SharedExpertConfig {
        d_ff: d_ff.saturating_mul(n_shared),
        gate: false,
    };
    let n_experts = json.size_or(&["moe_num_experts", "num_experts"], 64)?;
    let experts = ExpertsConfig::new(n_experts, routing)
        .with_correction(true)
        .with_shared((n_shared > 0).then_some(shared));
    let first = json.size_or(&["moe_layer_start_index"], 1)?;
    let last = match json.number(&["moe_layer_end_index"], -1.0)? {
        -1.0 => f64::INFINITY,
        last => last,
    };
    let step = json.size_or(&["moe_layer_interval"], 1)?.max(1);
    Ok(stack.with_each(|i, block| {
        if (i + 1).is_multiple_of(step) && i >= first && i as f64 <= last {
            block.feed_forward.d_ff = d_ff;
            block.feed_forward.experts = Some(experts);
        }
    }))
}
