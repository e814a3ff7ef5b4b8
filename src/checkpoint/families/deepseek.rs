//! DeepSeek-V2 and V3: Llama's blocks with multi-head latent attention and experts.
//!
//! transformers' `DeepseekV2Attention`, `DeepseekV2TopkRouter`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/deepseek_v2/modeling_deepseek_v2.py>, and
//! `DeepseekV3Attention`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/deepseek_v3/modeling_deepseek_v3.py>

use super::llama::{block, decoder, uniform};
use super::mixtral::{expert_rules, shared_rules};
use super::prelude::*;
use super::sigmoid_experts::{correction, with_experts};

pub(super) fn families() -> Vec<Family> {
    vec![
        experts("deepseek_v2", deepseek_v2),
        corrected("deepseek_v3", deepseek_v3),
    ]
}

/// The table for latent attention with experts.
fn experts(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    latent_decoder(name, config)
        .block_rules(expert_rules())
        .block_rules(shared_rules("mlp.shared_experts"))
}

/// The table with correction biases for the experts' scores.
pub(super) fn corrected(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    experts(name, config).block_rules([correction("mlp.gate.e_score_correction_bias")])
}

/// Llama's table with latent attention.
pub(super) fn latent_decoder(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    decoder(name, config)
        .replace_block_rules([
            Rule::linear(
                "attention.query",
                &["self_attn.q_b_proj", "self_attn.q_proj"],
            ),
            Rule::linear("attention.query_latent", &["self_attn.q_a_proj"]),
            Rule::norm("attention.query_latent_norm", &["self_attn.q_a_layernorm"]),
            Rule::linear("attention.latent", &["self_attn.kv_a_proj_with_mqa"]),
            Rule::norm("attention.latent_norm", &["self_attn.kv_a_layernorm"]),
            Rule::linear("attention.key_value", &["self_attn.kv_b_proj"]),
        ])
        .new_names(|json| {
            Ok(match json.switchable_size("q_lora_rank", 1)? {
                Some(_) => &[],
                None => &["*.q_proj.*"],
            })
        })
}

fn deepseek_v2(json: &ConfigJson) -> Result<StackConfig> {
    let method = json.text(&["topk_method"])?.unwrap_or("greedy".into());
    json.only(
        "topk_method",
        &["greedy", "group_limited_greedy"].map(Value::from),
    )?;
    let block = latent_block(json, USUAL, Some(RotaryPairing::Interleaved))?;
    json.only("mlp_bias", &[false.into()])?; // experts would not have this bias
    let json = &json.with_default("n_shared_experts", 2);
    let stack = with_experts(json, uniform(json, block)?, false, |i| {
        Ok(i >= json.size_or(&["first_k_dense_replace"], 0)?)
    })?;
    Ok(stack.with_each(|_, block| {
        if let Some(experts) = &mut block.feed_forward.experts {
            let routing = &mut experts.routing;
            (routing.scores, routing.weights) = (RoutingScores::Softmax, RoutingWeights::Scores);
            routing.groups = match &*method {
                "greedy" => None,
                _ => routing.groups.map(|groups| ExpertGroups {
                    judged_by: 1,
                    ..groups
                }),
            };
            experts.correction = false;
        }
    }))
}

fn deepseek_v3(json: &ConfigJson) -> Result<StackConfig> {
    json.only_whole_heads()?; // else transformers rotates the whole head with fewer frequencies
    let block = latent_block(json, USUAL, None)?;
    let json = &json
        .with_default("n_group", 8)
        .with_default("topk_group", 4);
    let json = &json.with_default("n_shared_experts", 1);
    let json = &json.with_default("routed_scaling_factor", 2.5);
    with_experts(json, uniform(json, block)?, true, |i| {
        Ok(i >= json.size_or(&["first_k_dense_replace"], 3)?)
    })
}

/// Default sizes: the ranks for queries and for keys and values, and a head's dimensions without rotation, with rotation,
/// and for values.
pub(super) type LatentSizes = [usize; 5];

/// The default sizes in most classes.
pub(super) const USUAL: LatentSizes = [1536, 512, 128, 64, 128];

/// Returns Llama's block with latent attention. Its rotation pairs dimensions by `pairing`, or without it by
/// `rope_interleave`.
pub(super) fn latent_block(
    json: &ConfigJson,
    [query_rank, rank, plain, turning, value_dim]: LatentSizes,
    pairing: Option<RotaryPairing>,
) -> Result<BlockConfig> {
    let n_heads = json.size(&["num_attention_heads"])?;
    json.only("num_key_value_heads", &[n_heads.into()])?;
    let rotary_dim = json.size_or(&["qk_rope_head_dim"], turning)?;
    let mut block = block(
        &json.with_default("head_dim", rotary_dim),
        AttentionBias::NONE,
    )?;
    let d_model = block.d_model();
    let latent = LatentConfig {
        query_rank: json.switchable_size("q_lora_rank", query_rank)?,
        rank: json.size_or(&["kv_lora_rank"], rank)?,
        rotary_dim,
        value_dim: json.size_or(&["v_head_dim"], value_dim)?,
        norm: NormConfig::rms_norm(d_model, 1e-6), // independent of `rms_norm_eps`
    };
    let pairing = match (pairing, json.flag(&["rope_interleave"], true)?) {
        (Some(pairing), _) => pairing,
        (None, true) => RotaryPairing::Interleaved,
        (None, false) => RotaryPairing::Halves,
    };
    let has_bias = json.flag(&["attention_bias"], false)?;
    let bias = AttentionBias {
        query: has_bias && latent.query_rank.is_some(),
        ..AttentionBias::new(has_bias, has_bias)
    };
    let plain = json.size_or(&["qk_nope_head_dim"], plain)?;
    let head_dim = plain.saturating_add(rotary_dim);
    let attention = AttentionConfig::with_head_dim(d_model, n_heads, head_dim);
    let rotary = json.rotary(rotary_dim, 10000.0)?.with_pairing(pairing);
    let scale = attention.scale * json.score_stretch()?;
    block.attention = attention
        .with_latent(Some(latent))
        .with_position(Position::Rotary(rotary))
        .with_scale(scale)
        .with_bias(bias)
        .with_dropout(block.attention.dropout)
        .causal();
    Ok(block)
}
