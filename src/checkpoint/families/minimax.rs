//! MiniMax-Text-01 and M1: Mixtral's blocks, most with lightning attention, whose residuals are the normalized inputs.
//!
//! transformers' `MiniMaxDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/minimax/modeling_minimax.py>

use super::layer_types::{FULL, LINEAR};
use super::llama::decoder;
use super::mixtral::{mixtral, mixtral_rules};
use super::prelude::*;

pub(super) fn family() -> Family {
    let fused = |role: &str, part: MixerPart| {
        let rule = Rule::linear(
            &format!("attention.lightning.{role}"),
            &["self_attn.qkv_proj"],
        );
        rule.part(Part::Mixer(MixerLayout::QueryKeyValueByHead, part))
    };
    let linear =
        |role: &str, name: &str| Rule::linear(&format!("attention.lightning.{role}"), &[name]);
    decoder("minimax", minimax)
        .block_rules(mixtral_rules())
        .block_rules([
            fused("query", MixerPart::Query),
            fused("key", MixerPart::Key),
            fused("value", MixerPart::Value),
            linear("gate", "self_attn.output_gate"),
            linear("output", "self_attn.out_proj"),
            Rule::norm("attention.lightning.norm", &["self_attn.norm"]),
        ])
        // Tables that follow from the configuration.
        .ignored(&["*.slope_rate", "*_decay"])
}

fn minimax(json: &ConfigJson) -> Result<StackConfig> {
    let stack = mixtral(json)?;
    let n_layers = stack.blocks.len();
    let kind = |i: usize| if i.is_multiple_of(2) { FULL } else { LINEAR };
    let kinds = json.layer_types(n_layers, &[FULL, LINEAR], kind)?;
    let attention = stack.blocks[0].attention()?;
    let (d_model, n_heads, head_dim) = (attention.d_model, attention.n_heads, attention.head_dim);
    let activation = stack.blocks[0].feed_forward.activation;
    let lightning = LightningConfig::new(d_model, n_heads, head_dim).with_activation(activation);
    let factors = |side: &str| factors(json, side, &kinds);
    let (carry, multiplier) = (factors("alpha")?, factors("beta")?);
    Ok(stack.with_each(|i, block| {
        block.residual.source = ResidualSource::Normalized;
        (block.residual.carry, block.residual.multiplier) = (carry, multiplier);
        if kinds[i] == LINEAR {
            let depth = i as f64 / ((n_layers - 1) as f64 + 1e-5);
            block.mixer = lightning.with_slope(1.0 - depth + 1e-5).into();
        }
    }))
}

/// Returns the factor of all sublayers on one side of their sums.
///
/// # Errors
/// If sublayers differ.
fn factors(json: &ConfigJson, side: &str, kinds: &[&str]) -> Result<f64> {
    let key = |sublayer: &str| format!("{sublayer}_{side}_factor");
    let factor = json.number(&[&key("mlp")], 1.0)?;
    for (kind, sublayer) in [(FULL, "full_attn"), (LINEAR, "linear_attn")] {
        let own = json.number(&[&key(sublayer)], 1.0)?;
        if own != factor && kinds.contains(&kind) {
            let reason = format!("found {own}, expected {factor}, as {} has", key("mlp"));
            return Err(json.error(&[&key(sublayer)], reason));
        }
    }
    Ok(factor)
}
