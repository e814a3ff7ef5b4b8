//! Granite, Granite MoE and HyperCLOVA X: Llama's blocks with factors on embeddings, scores, residuals and logits. Granite
//! MoE has stacked experts, with or without a shared expert. HyperCLOVA X has norms before and after each sublayer.
//!
//! transformers' `GraniteDecoderLayer` and `GraniteMoeMoE`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/granitemoe/modeling_granitemoe.py>

use super::llama::{bias, biased_block, block, decoder, uniform};
use super::mixtral::expert_rules;
use super::prelude::*;

/// Llama's table with factors on embeddings and logits.
pub(super) fn table(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    decoder(name, config)
        .embeddings(embeddings)
        .head(HeadTask::CausalLm, |json, _| {
            let keys = ["logits_scaling"];
            let scale = 1.0 / json.positive(json.number(&keys, 1.0)?, &keys)?;
            next_token(language_model(json)?.with_scale(scale))
        })
}

/// Token embeddings with a factor.
pub(super) fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let scale = json.number(&["embedding_multiplier"], 1.0)?;
    Ok(padded_token_embeddings(json, stack)?
        .with_scale(scale)
        .into())
}

/// Adds the names of stacked experts.
pub(super) fn stacked_experts(family: Family) -> Family {
    let both = Rule::fused_gate(&["block_sparse_moe.input_linear"], GateHalf::First);
    let down = Rule::linear("feed_forward.down", &["block_sparse_moe.output_linear"]);
    let of_each = |rule: Rule| {
        let role = rule.role.replace('.', ".experts.{e}.");
        Rule { role, ..rule }.stacked()
    };
    family
        .block_rules([Rule::linear(
            "feed_forward.router",
            &["block_sparse_moe.router.layer"],
        )])
        .block_rules(both.into_iter().chain([down]).map(of_each))
        .block_rules(expert_rules()) // of GGUF files
}

/// Rules for the shared expert.
pub(super) fn shared_rules() -> impl Iterator<Item = Rule> {
    let both = Rule::fused_gate(&["shared_mlp.input_linear"], GateHalf::First);
    let down = Rule::linear("feed_forward.down", &["shared_mlp.output_linear"]);
    both.into_iter().chain([down]).map(|rule| {
        let role = rule.role.replace('.', ".shared.");
        Rule { role, ..rule }
    })
}

pub(super) fn families() -> Vec<Family> {
    let moe = stacked_experts(table("granitemoe", granitemoe));
    let with_shared = |json: &ConfigJson| shared(json, granitemoe(json)?);
    let moe_shared = stacked_experts(table("granitemoeshared", with_shared));
    let moe_shared = moe_shared.block_rules(shared_rules());
    // Of GGUF files.
    let moe_shared = moe_shared.block_rules(gated("feed_forward.shared", "shared_mlp"));
    let peri = table("hyperclovax", hyperclovax)
        .block_rules([
            Rule::norm("attention_output_norm", &["post_norm1"]),
            Rule::norm("feed_forward_output_norm", &["post_norm2"]),
        ])
        .head(HeadTask::CausalLm, |json, _| {
            let scale = json.number(&["logits_scaling"], 1.0)?;
            next_token(language_model(json)?.with_scale(scale))
        });
    let docling = table("granite_docling_text", granite);
    let beside_images = table("granite4_vision_text", granite);
    let plain = table("granite", granite);
    vec![plain, moe, moe_shared, peri, docling, beside_images]
}

pub(super) fn granite(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = biased_block(json)?;
    block.attention_mut()?.scale = json.number(&["attention_multiplier"], 1.0)?;
    block.residual.multiplier = json.number(&["residual_multiplier"], 1.0)?;
    uniform(json, block)
}

fn hyperclovax(json: &ConfigJson) -> Result<StackConfig> {
    let usual = block(json, bias(json)?)?.attention()?.scale;
    let is_peri = json.flag(&["use_post_norm"], true)?;
    let given = json.optional_number(&["attention_multiplier"])?;
    let stack =
        granite(json)?.with_each_attention(|_, attention| attention.scale = given.unwrap_or(usual));
    Ok(stack.with_each(|_, block| {
        if is_peri {
            block.attention_placement = NormPlacement::Sandwich;
            block.feed_forward_placement = NormPlacement::Sandwich;
        }
    }))
}

pub(super) fn granitemoe(json: &ConfigJson) -> Result<StackConfig> {
    let routing = RoutingConfig::renormalized(json.size_or(&["num_experts_per_tok"], 2)?);
    let experts = ExpertsConfig::new(json.size_or(&["num_local_experts"], 8)?, routing);
    let stack = granite(&json.without("mlp_bias"))?;
    Ok(stack.with_each(|_, block| block.feed_forward.experts = Some(experts)))
}

/// Adds a shared expert with its own width, unless that is 0.
pub(super) fn shared(json: &ConfigJson, stack: StackConfig) -> Result<StackConfig> {
    let d_ff = json.size_or(&["shared_intermediate_size"], 0)?;
    let shared = (d_ff > 0).then_some(SharedExpertConfig { d_ff, gate: false });
    Ok(stack.with_each(|_, block| {
        if let Some(experts) = &mut block.feed_forward.experts {
            experts.shared = shared;
        }
    }))
}
