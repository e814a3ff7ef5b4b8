//! Gemma 3n (text): Gemma 4's per-layer inputs and shared keys of earlier layers, with AltUp, LAuReL, and gates that cut off
//! most outputs.
//!
//! transformers' `Gemma3nTextDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma3n/modeling_gemma3n.py>

use super::beside::beside;
use super::gemma::{global_rotary, sandwich_table};
use super::layer_inputs::{layer_inputs, normalized_block, with_layer_inputs};
use super::llama::uniform;
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let others = ["*audio_tower.*", "*embed_vision.*", "*embed_audio.*"];
    vec![
        table("gemma3n_text"),
        beside(table("gemma3n"), true)
            .prefixes(&["model.language_model.", "language_model.", ""])
            .outside(&others),
    ]
}

fn table(name: &str) -> Family {
    with_layer_inputs(sandwich_table(name, config))
        .block_rules([
            Rule::norm("altup.router_norm", &["altup.router_norm"]),
            Rule::linear("altup.router", &["altup.modality_router"]),
            Rule::linear("altup.prediction", &["altup.prediction_coefs"]),
            Rule::linear("altup.correction", &["altup.correction_coefs"]),
            Rule::named("altup.input_scale", &["altup.correct_output_scale"], &[]),
            Rule::linear("laurel.down", &["laurel.linear_left"]),
            Rule::linear("laurel.up", &["laurel.linear_right"]),
            Rule::norm("laurel.norm", &["laurel.post_laurel_norm"]),
        ])
        .stack_rules([
            Rule::linear("altup.spread.{e}", &["altup_projections.{e}"]),
            Rule::linear("altup.merge.{e}", &["altup_unembed_projections.{e}"]),
        ])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("altup_correct_scale", &[json!(true)])?;
    let n_layers = json.n_blocks(&["num_hidden_layers"])?;
    let key = "intermediate_size";
    let widths = match json.at(key) {
        Some(Value::Array(_)) => json.parsed::<Vec<usize>>(key)?,
        _ => None,
    };
    let one_width = match &widths {
        Some(_) => &json.with(key, 1),
        None => json,
    };
    let mut usual = normalized_block(one_width)?;
    let own = GemmaConfig {
        laurel_rank: Some(json.size_or(&["laurel_rank"], 64)?),
        altup: Some(AltUpConfig {
            n_streams: json.size_or(&["altup_num_inputs"], 4)?,
            active: json.size_or(&["altup_active_idx"], 0)?,
        }),
        ..GemmaConfig::default()
    };
    let input_norm = layer_inputs(json, &mut usual, own)?;
    let head_dim = usual.attention()?.head_dim;
    let kind = "sliding_attention";
    let local = json.rotary_of_type(kind, "rope_local_base_freq", head_dim, 10_000.0)?;
    let global = global_rotary(json, head_dim, 1e6)?;
    let window = json.switchable_size("sliding_window", 512)?;
    let is_sliding = json.sliding_layers(n_layers, |i| !(i + 1).is_multiple_of(5))?;
    let pattern = "activation_sparsity_pattern";
    let sparsity = match json.numbers(&[pattern])? {
        Some(shares) => shares,
        None if n_layers > 10 => [vec![0.95; 10], vec![0.0; n_layers - 10]].concat(),
        None => vec![0.0; n_layers],
    };
    let n_widths = widths.as_ref().map_or(n_layers, Vec::len);
    for (key, found) in [(key, n_widths), (pattern, sparsity.len())] {
        if found != n_layers {
            let reason = format!("lists {found} layers, expected {n_layers}");
            return Err(json.error(&[key], reason));
        }
    }
    let stack = uniform(one_width, usual)?.with_layer_inputs(input_norm);
    let stack = stack.with_each_attention(|i, attention| {
        let rotary = if is_sliding[i] { &local } else { &global };
        attention.position = Position::Rotary(rotary.clone());
        attention.window = window.filter(|_| is_sliding[i]);
    });
    let stack = stack.with_each(|i, block| {
        block.feed_forward.sparsity = Some(sparsity[i]).filter(|share| *share != 0.0);
        if let Some(widths) = &widths {
            block.feed_forward.d_ff = widths[i];
        }
    });
    Ok(stack.with_shared_keys(json.size_or(&["num_kv_shared_layers"], 15)?))
}
