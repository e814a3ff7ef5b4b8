//! ViT and DeiT: pre-norm encoders of image patches, with BERT's names.
//!
//! transformers' `ViTLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/vit/modeling_vit.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("vit", &["vit", "deit"], config)
        .prefixes(&["vit.", "deit.", ""])
        .blocks(
            "encoder.layer.{i}.",
            [
                Rule::norm("attention_norm", &["layernorm_before"]),
                Rule::linear("attention.query", &["attention.attention.query"]),
                Rule::linear("attention.key", &["attention.attention.key"]),
                Rule::linear("attention.value", &["attention.attention.value"]),
                Rule::linear("attention.output", &["attention.output.dense"]),
                Rule::norm("feed_forward_norm", &["layernorm_after"]),
                Rule::linear("feed_forward.up", &["intermediate.dense"]),
                Rule::linear("feed_forward.down", &["output.dense"]),
            ],
        )
        .stack_rules([Rule::norm("final_norm", &["layernorm"])])
        .outside(&["embeddings.*", "pooler.*", "*classifier.*", "decoder.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .with_bias(AttentionBias::new(json.flag(&["qkv_bias"], true)?, true))
        .with_dropout(json.number(&["attention_probs_dropout_prob"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-12)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_residual_dropout(json.number(&["hidden_dropout_prob"], 0.0)?);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}
