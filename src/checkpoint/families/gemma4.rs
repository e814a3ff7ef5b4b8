//! Gemma 4 (text, dense): Gemma 3's blocks with per-layer inputs. The last layers attend to keys of earlier ones; values are
//! normalized; global layers have wider heads; a factor scales each block's output.
//!
//! transformers' `Gemma4TextDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma4/modeling_gemma4.py>

use super::beside::beside;
use super::gemma::sandwich_table;
use super::layer_inputs::{layer_inputs, normalized_block, with_layer_inputs};
use super::llama::uniform;
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
    with_layer_inputs(sandwich_table(name, config)).block_rules([Rule::named(
        "output_scale",
        &["layer_scalar"],
        &[],
    )])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let local_and_global = json!({"sliding_attention": {"rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}});
    let json = &json.with_default("rope_parameters", local_and_global);
    json.only("enable_moe_block", &[json!(false)])?;
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
    let stack = stack.with_shared_keys(json.size_or(&["num_kv_shared_layers"], 0)?);
    let is_wide = json.flag(&["use_double_wide_mlp"], false)?;
    Ok(stack.with_each(|_, block| {
        if is_wide && block.facts().shares_from.is_some() {
            block.feed_forward.d_ff *= 2;
        }
    }))
}
