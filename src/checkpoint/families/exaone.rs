//! EXAONE 3: Llama's blocks with GPT-2's names. EXAONE 4: OLMo 3's blocks with query and key norms over each head,
//! and rotary embeddings only in layers with a sliding window. K-EXAONE: the same attention in Llama's blocks, with
//! experts selected by sigmoids.
//!
//! transformers' `Exaone4DecoderLayer` and `ExaoneMoeDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/exaone_moe/modeling_exaone_moe.py>

use super::llama::{block, decoder, llama, prefix_by_head, uniform};
use super::olmo::{normed_outputs, norms_after};
use super::prelude::*;
use super::sigmoid_experts::{chosen_by_sigmoids, with_experts};

pub(super) fn families() -> Vec<Family> {
    vec![
        exaone(),
        norms_after("exaone4", exaone4).new_names(prefix_by_head),
        chosen_by_sigmoids("exaone_moe", exaone_moe, "mlp.e_score_correction_bias")
            .renamed("n_routed_experts", "num_experts")
            .renamed("n_shared_experts", "num_shared_experts"),
    ]
}

/// The table for the files on the Hub, with which transformers' `ExaoneConfig` opens Llama's class.
fn exaone() -> Family {
    let attention = ["q_proj", "k_proj", "v_proj", "out_proj"];
    decoder("exaone", llama)
        .prefixes(&["transformer.", ""])
        .block("h.{i}.")
        .replace_block_rules(projections("attention", "attn.attention", attention))
        .replace_block_rules([
            Rule::norm("attention_norm", &["ln_1"]),
            Rule::norm("feed_forward_norm", &["ln_2"]),
            Rule::linear("feed_forward.gate", &["mlp.c_fc_0"]),
            Rule::linear("feed_forward.up", &["mlp.c_fc_1"]),
            Rule::linear("feed_forward.down", &["mlp.c_proj"]),
        ])
        .replace_stack_rules([Rule::norm("final_norm", &["ln_f"])])
        .replace_end_rules([Rule::linear("embeddings.word", &["wte"])])
        .outside(&["*wte.*"])
}

fn exaone4(json: &ConfigJson) -> Result<StackConfig> {
    let block = normed_outputs(json, AttentionBias::NONE, QueryKeyNormSpan::Head)?;
    with_windows(json, uniform(json, block)?)
}

fn exaone_moe(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, AttentionBias::NONE)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    let stack = with_windows(json, uniform(json, block)?)?;
    let first = json.size_or(&["first_k_dense_replace"], 1)?;
    let kinds = json.texts(&["mlp_layer_types"])?;
    let is_sparse = |i: usize| match &kinds {
        Some(kinds) => kinds.get(i).is_some_and(|kind| kind == "sparse"),
        None => i >= first,
    };
    with_experts(json, stack, true, |i| Ok(is_sparse(i)))
}

/// Sets sliding windows in some layers, and no rotation in the others.
fn with_windows(json: &ConfigJson, stack: StackConfig) -> Result<StackConfig> {
    let window = json.switchable_size("sliding_window", 4096)?;
    let period = match json.texts(&["layer_types"])? {
        Some(_) => 0, // published files also have another pattern
        None => json.size_or(&["sliding_window_pattern"], 4)?,
    };
    let is_sliding =
        json.sliding_layers(stack.blocks.len(), |i| !(i + 1).is_multiple_of(period))?;
    Ok(stack.with_each_attention(|i, attention| {
        attention.window = window.filter(|_| is_sliding[i]);
        if window.is_some() && !is_sliding[i] {
            attention.position = Position::None;
        }
    }))
}
