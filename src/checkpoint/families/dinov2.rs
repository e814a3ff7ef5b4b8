//! DINOv2: pre-norm encoder for image patches with layer scale.
//!
//! transformers' `Dinov2Layer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/dinov2/modeling_dinov2.py>

use super::{patches, prelude::*};

pub(super) fn family() -> Family {
    Family::new("dinov2", &["dinov2", "dinov2_with_registers"], config)
        .prefixes(&["dinov2.", "dinov2_with_registers.", ""])
        .block("encoder.layer.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["norm1"]),
            Rule::linear("attention.query", &["attention.attention.query"]),
            Rule::linear("attention.key", &["attention.attention.key"]),
            Rule::linear("attention.value", &["attention.attention.value"]),
            Rule::linear("attention.output", &["attention.output.dense"]),
            Rule::named("attention_layer_scale", &["layer_scale1.lambda1"], &[]),
            Rule::norm("feed_forward_norm", &["norm2"]),
            Rule::linear("feed_forward.up", &["mlp.fc1"]),
            Rule::linear("feed_forward.down", &["mlp.fc2", "mlp.weights_out"]),
            Rule::named("feed_forward_layer_scale", &["layer_scale2.lambda1"], &[]),
        ])
        .block_rules(Rule::fused_gate(&["mlp.weights_in"], GateHalf::First))
        .stack_rules([Rule::norm("final_norm", &["layernorm"])])
        .end_rules(patches::rules())
        .end_rules([Rule::with_leading_ones(
            "embeddings.registers",
            &["embeddings.register_tokens"],
            1,
        )])
        .end_rules([Rule::linear("image_classification.output", &["classifier"])])
        .embeddings(embeddings)
        .pooler(|_, _| Ok(ReadoutConfig::new(TokenSelection::First)))
        .head(HeadTask::ImageClassification, |json, _| {
            let skipped = 1 + registers(json)?.unwrap_or(0);
            let reads = TokenSelection::FirstAndMean { skipped };
            Ok(ReadoutConfig::new(reads).with_output(labels(json)?))
        })
        .ignored(&["*embeddings.mask_token"]) // for pretraining alone
        .outside(&["embeddings.*", "classifier.*"])
        .initialization(initialization)
        .new_names(|json| {
            let is_gated = json.flag(&["use_swiglu_ffn"], false)?;
            Ok(match (is_gated, registers(json)?) {
                (true, None) => &["*.weights_in.*", "*.weights_out.*"],
                (false, None) => &["*.fc1.*", "*.fc2.*"],
                (true, Some(_)) => &[
                    "dinov2_with_registers.embeddings.*",
                    "*.weights_in.*",
                    "*.weights_out.*",
                ],
                (false, Some(_)) => &["dinov2_with_registers.embeddings.*", "*.fc1.*", "*.fc2.*"],
            })
        })
}

/// Returns the number of register tokens, for the class that has them.
fn registers(json: &ConfigJson) -> Result<Option<usize>> {
    match json.text(&["model_type"])?.as_deref() {
        Some("dinov2_with_registers") => Ok(Some(json.size_or(&["num_register_tokens"], 4)?)),
        _ => Ok(None),
    }
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let registers = registers(json)?;
    // The two classes also differ in these.
    let (patch, resizing) = match registers {
        Some(_) => (16, Resizing::SmoothCubic),
        None => (14, Resizing::Cubic),
    };
    let patches = PatchEmbeddingsConfig {
        n_registers: registers.unwrap_or(0),
        resizing,
        dropout: json.number(&["hidden_dropout_prob"], 0.0)?,
        ..patches::config(json, stack.blocks[0].d_model(), [224, patch])?
    };
    Ok(EmbeddingsConfig::Patches(patches))
}

pub(super) fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let attention = attention_of(json, d_model, json.size(&["num_attention_heads"])?)?
        .with_bias(AttentionBias::new(json.flag(&["qkv_bias"], true)?, true))
        .with_dropout(json.number(&["attention_probs_dropout_prob"], 0.0)?);
    let width = (d_model as f64 * json.number(&["mlp_ratio"], 4.0)?) as usize;
    let feed_forward = match json.flag(&["use_swiglu_ffn"], false)? {
        true => FeedForwardConfig::new(d_model)
            .with_d_ff((width.saturating_mul(2) / 3).div_ceil(8) * 8)
            .with_form(FeedForwardForm::Gated)
            .with_activation(Activation::Silu),
        false => FeedForwardConfig::new(d_model)
            .with_d_ff(width)
            .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?),
    };
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-6)?);
    let residual = ResidualConfig {
        layer_scale: true,
        drop_path: json.number(&["drop_path_rate"], 0.0)?, // the same at every depth
        ..ResidualConfig::default()
    };
    // `hidden_dropout_prob` only applies to the embeddings.
    let block =
        BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre).with_residual(residual);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}

pub(super) fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let weight = weight(json)?;
    let scale = Distribution::Constant(json.number(&["layerscale_value"], 1.0)?);
    let deviation = initializer_range::deviation(json, 0.02)?;
    Ok(Initialization::normal(deviation)
        .with("*attention.*.weight", weight)
        .with("*feed_forward.*.weight", weight)
        .with("*_layer_scale.weight", scale))
}

/// Returns the initialization of matrices.
pub(super) fn weight(json: &ConfigJson) -> Result<Distribution> {
    // PyTorch truncates at the absolute values ±2, a hundred standard deviations away.
    Ok(Distribution::TruncatedNormal {
        deviation: initializer_range::deviation(json, 0.02)?,
        cut: 2.0,
    })
}
