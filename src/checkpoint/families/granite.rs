//! Granite, Granite MoE and HyperCLOVA X: Llama's blocks with factors on embeddings, scores, residuals and logits; the second with
//! a mixture of experts whose weights are stacked, the third with norms on both sides.
//!
//! transformers' `GraniteDecoderLayer` and `GraniteMoeMoE`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/granitemoe/modeling_granitemoe.py>

use super::llama::{bias, block, decoder, uniform};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let table = |name: &str, config| {
        decoder(name, config)
            .embeddings(|json, stack| {
                let scale = json.number(&["embedding_multiplier"], 1.0)?;
                Ok(padded_words(json, stack)?.with_scale(scale).into())
            })
            .head(Task::CausalLm, |json, _| {
                let scale = 1.0 / json.number(&["logits_scaling"], 1.0)?;
                next_token(language_model(json)?.with_scale(scale))
            })
    };
    let both = Rule::fused_gate(&["block_sparse_moe.input_linear"], Half::First);
    let of_each = |rule: Rule| {
        let role = rule.role.replace('.', ".experts.{e}.");
        Rule { role, ..rule }.stacked()
    };
    let down = Rule::linear("feed_forward.down", &["block_sparse_moe.output_linear"]);
    let moe = table("granitemoe", granitemoe)
        .block_rules([Rule::linear(
            "feed_forward.router",
            &["block_sparse_moe.router.layer"],
        )])
        .block_rules(both.into_iter().chain([down]).map(of_each));
    let peri = table("hyperclovax", hyperclovax)
        .block_rules([
            Rule::norm("attention_output_norm", &["post_norm1"]),
            Rule::norm("feed_forward_output_norm", &["post_norm2"]),
        ])
        .head(Task::CausalLm, |json, _| {
            let scale = json.number(&["logits_scaling"], 1.0)?;
            next_token(language_model(json)?.with_scale(scale))
        });
    vec![table("granite", granite), moe, peri]
}

fn granite(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, bias(json)?)?;
    block.attention.scale = json.number(&["attention_multiplier"], 1.0)?;
    block.residual.multiplier = json.number(&["residual_multiplier"], 1.0)?;
    uniform(json, block)
}

fn hyperclovax(json: &ConfigJson) -> Result<StackConfig> {
    let usual = block(json, bias(json)?)?.attention.scale;
    let is_peri = json.flag(&["use_post_norm"], true)?;
    let given = json.optional_number(&["attention_multiplier"])?;
    Ok(granite(json)?.with_each(|_, block| {
        block.attention.scale = given.unwrap_or(usual);
        if is_peri {
            block.attention_placement = NormPlacement::Sandwich;
            block.feed_forward_placement = NormPlacement::Sandwich;
        }
    }))
}

fn granitemoe(json: &ConfigJson) -> Result<StackConfig> {
    let routing = RoutingConfig::renormalized(json.size_or(&["num_experts_per_tok"], 2)?);
    let experts = ExpertsConfig::new(json.size_or(&["num_local_experts"], 8)?, routing);
    let stack = granite(json)?;
    Ok(stack.with_each(|_, block| block.feed_forward.experts = Some(experts)))
}
