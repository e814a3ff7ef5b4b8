//! PyTorch's own `nn.TransformerEncoder` and `nn.TransformerDecoder` state dictionaries, with a `config.json` that
//! holds the arguments of `nn.TransformerEncoderLayer` (`d_model`, `nhead`, `dim_feedforward`, `activation`,
//! `norm_first` ...) and `num_layers`.
//!
//! <https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html>

use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let stack = |name: &str, config, feed_forward_norm: &str| {
        Family::new(name, &[name], config)
            .initialization(initialization)
            .prefixes(&[
                "",
                "encoder.",
                "decoder.",
                "transformer_encoder.",
                "transformer_decoder.",
            ])
            .block("layers.{i}.")
            .block_rules(attention("attention", "self_attn", "norm1"))
            .block_rules(attention("cross_attention", "multihead_attn", "norm2"))
            .block_rules([
                Rule::linear("feed_forward.up", &["linear1"]),
                Rule::linear("feed_forward.down", &["linear2"]),
                Rule::norm("feed_forward_norm", &[feed_forward_norm]),
            ])
            .stack_rules([Rule::norm("final_norm", &["norm"])])
    };
    vec![
        stack("torch_transformer_encoder", encoder, "norm2"),
        stack("torch_transformer_decoder", decoder, "norm3"),
    ]
}

fn attention(role: &str, stem: &str, norm: &str) -> Vec<Rule> {
    let (weight, bias) = (
        format!("{stem}.in_proj_weight"),
        format!("{stem}.in_proj_bias"),
    );
    let fused = |part: &str, projection| {
        Rule::named(&format!("{role}.{part}"), &[&weight], &[&bias])
            .part(Part::Fused(FusedLayout::Blocks, projection))
    };
    vec![
        fused("query", Projection::Query),
        fused("key", Projection::Key),
        fused("value", Projection::Value),
        Rule::linear(&format!("{role}.output"), &[&format!("{stem}.out_proj")]),
        Rule::norm(&format!("{role}_norm"), &[norm]),
    ]
}

fn encoder(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["d_model"])?;
    let has_bias = json.flag(&["bias"], true)?;
    let dropout = json.number(&["dropout"], 0.1)?;
    let attention = AttentionConfig::new(d_model, json.size(&["nhead"])?)?
        .with_bias(AttentionBias::new(has_bias, has_bias))
        .with_dropout(dropout);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size_or(&["dim_feedforward"], 2048)?)
        .with_activation(json.activation(&["activation"], Activation::Relu)?)
        .with_bias(has_bias)
        .with_dropout(dropout);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-5)?)
        .with_bias(has_bias);
    let placement = match json.flag(&["norm_first"], false)? {
        true => NormPlacement::Pre,
        false => NormPlacement::Post,
    };
    let block =
        BlockConfig::new(attention, feed_forward, norm, placement).with_residual_dropout(dropout);
    let has_final = json.flag(&["final_norm"], false)?;
    let n_blocks = json.n_blocks(&["num_layers"])?;
    Ok(StackConfig::uniform(
        block,
        n_blocks,
        has_final.then_some(norm),
    ))
}

fn decoder(json: &ConfigJson) -> Result<StackConfig> {
    Ok(encoder(json)?.into_decoder())
}

/// Returns PyTorch's initialization: `nn.MultiheadAttention` initializes its fused `[3 · d_model, d_model]` weight by
/// Xavier's formula, with zero biases.
fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let d_model = json.size(&["d_model"])? as f64;
    let fused = Distribution::Uniform {
        bound: (6.0 / (4.0 * d_model)).sqrt(),
    };
    let projections = ["query", "key", "value"].map(|name| format!("*attention.{name}.weight"));
    let torch = Initialization::torch().with("*attention.*.bias", Distribution::Constant(0.0));
    Ok(projections
        .iter()
        .fold(torch, |all, pattern| all.with(pattern, fused)))
}
