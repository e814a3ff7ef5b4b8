//! Gemma 4 (text): Gemma 3's blocks with per-layer inputs. The last layers attend to keys of earlier ones; values are
//! normalized; global layers have wider heads; a factor scales each block's output. Experts are added to the feed-forward, each
//! branch with norms of its own.
//!
//! transformers' `Gemma4TextDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma4/modeling_gemma4.py>

use super::beside::beside;
use super::gemma::sandwich_table;
use super::layer_inputs::{layer_inputs, normalized_block, with_layer_inputs};
use super::llama::uniform;
use super::mixtral::stacked_experts;
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let side = |table: Family| {
        let others = ["*audio_tower.*", "*embed_vision.*", "*embed_audio.*"];
        beside(table, true)
            // The third prefix belongs to the text-only class.
            .prefixes(&["model.language_model.", "language_model.", "model.", ""])
            .outside(&others)
            .outside(&["*vision_embedder.*"])
    };
    // Without per-layer inputs, which are no key of its class.
    let unified = |name: &str| table(name).default_of("hidden_size_per_layer_input", 0);
    vec![
        table("gemma4_text"),
        side(table("gemma4")),
        unified("gemma4_unified_text"),
        side(unified("gemma4_unified")),
    ]
}

fn table(name: &str) -> Family {
    let parameter = |role: &str, name: &str| Rule::named(role, &[name], &[]);
    let norm = |role: &str, stem: &str| Rule::norm(role, &[stem]);
    with_layer_inputs(sandwich_table(name, config))
        .initialization(|json| {
            let all = Initialization::normal(initializer_range::deviation(json, 0.02)?);
            Ok(all.with("*router.expert_scale.weight", Distribution::Constant(1.0)))
        })
        .block_rules([parameter("output_scale", "layer_scalar")])
        .block_rules(stacked_experts("experts"))
        .block_rules(["gate", "up", "down"].map(|part| {
            let role = format!("feed_forward.experts.{{e}}.{part}");
            Rule::linear(&role, &[&format!("experts.{{e}}.{part}_proj")]) // of GGUF files
        }))
        .block_rules(gated("feed_forward.shared", "mlp"))
        .block_rules([
            Rule::linear("feed_forward.router", &["router.proj"]),
            parameter("feed_forward.router_norm", "router.scale"),
            parameter(
                "feed_forward.router.expert_scale",
                "router.per_expert_scale",
            ),
            norm("feed_forward.experts_norm", "pre_feedforward_layernorm_2"),
            norm(
                "feed_forward.experts_output_norm",
                "post_feedforward_layernorm_2",
            ),
            norm("feed_forward.shared_norm", "pre_feedforward_layernorm"),
            norm(
                "feed_forward.shared_output_norm",
                "post_feedforward_layernorm_1",
            ),
        ])
}

/// Returns the experts beside a feed-forward of width `d_ff`, and their own width.
fn experts(json: &ConfigJson, block: &BlockConfig, d_ff: usize) -> Result<(ExpertsConfig, usize)> {
    let routing = RoutingConfig::renormalized(json.size(&["top_k_experts"])?);
    let experts = ExpertsConfig::new(json.size(&["num_experts"])?, routing)
        .with_shared(Some(SharedExpertConfig { d_ff, gate: false }))
        .with_branch(ExpertBranch::Normalized { norm: block.norm });
    Ok((experts, json.size(&["moe_intermediate_size"])?))
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let local_and_global = json!({"sliding_attention": {"rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}});
    let json = &json.with_default("rope_parameters", local_and_global);
    json.only("use_bidirectional_attention", &[json!("vision")])?; // applies to image tokens only
    let mut usual = normalized_block(json)?;
    let own = GemmaConfig {
        output_scale: true,
        ..GemmaConfig::default()
    };
    let input_norm = layer_inputs(json, &mut usual, own)?;
    let mut stack = uniform(json, usual)?.with_layer_inputs(input_norm);
    let last = stack.blocks.len() - 1;
    let is_sliding = json.sliding_layers(last + 1, |i| !(i + 1).is_multiple_of(6))?;
    let each = json.section(&["per_layer_config"])?;
    // Leading zeros are possible: as many digits as the last index has.
    let number = |name: &str| name.parse().ok().filter(|number: &usize| *number <= last);
    let mut named = each.iter().flat_map(|each| each.keys());
    if let Some(other) = named.find(|name| number(name).is_none()) {
        let reason = format!("is {other:?}, expected the layers' indices");
        return Err(json.error(&["per_layer_config"], reason));
    }
    let values_are_keys = json.flag(&["attention_k_eq_v"], false)?;
    for (i, block) in stack.blocks.iter_mut().enumerate() {
        // In transformers, the last layer is always global.
        let is_sliding = is_sliding[i] && i < last;
        let attention = block.attention_mut()?;
        if let Some(each) = &each {
            let name = each.keys().find(|name| number(name) == Some(i));
            if let Some(own) = each.section(name.as_slice())? {
                let known = ["head_dim", "num_key_value_heads"];
                if let Some(other) = own.keys().find(|key| !known.contains(key)) {
                    let reason =
                        "is not supported for one layer, only head_dim and num_key_value_heads";
                    return Err(own.error(&[other], reason));
                }
                attention.head_dim = own.size_or(&["head_dim"], attention.head_dim)?;
                attention.n_kv_heads =
                    own.size_or(&["num_key_value_heads"], attention.n_kv_heads)?;
            }
        } else if !is_sliding {
            attention.head_dim = json.size_or(&["global_head_dim"], 512)?;
            if let Some(n_kv_heads) = json.optional_size(&["num_global_key_value_heads"])?
                && values_are_keys
            {
                attention.n_kv_heads = n_kv_heads;
            }
        }
        attention.values_are_keys = values_are_keys && !is_sliding;
        let (kind, theta) = match is_sliding {
            true => ("sliding_attention", 10_000.0),
            false => ("full_attention", 1e6),
        };
        let rotary = json.rotary_of_type(kind, "rope_theta", attention.head_dim, theta)?;
        attention.position = Position::Rotary(rotary);
        if is_sliding {
            attention.window = json.switchable_size("sliding_window", 512)?;
        }
    }
    let mut stack = stack.with_shared_keys(json.size_or(&["num_kv_shared_layers"], 0)?);
    let is_wide = json.flag(&["use_double_wide_mlp"], false)?;
    let has_experts = json.flag(&["enable_moe_block"], false)?;
    for block in &mut stack.blocks {
        if is_wide && block.facts().shares_from.is_some() {
            block.feed_forward.d_ff *= 2;
        }
        if has_experts {
            let (experts, d_ff) = experts(json, block, block.feed_forward.d_ff)?;
            (block.feed_forward.experts, block.feed_forward.d_ff) = (Some(experts), d_ff);
            block.feed_forward_placement = NormPlacement::Output;
        }
    }
    Ok(stack)
}
