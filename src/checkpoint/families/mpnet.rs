//! MPNet: BERT's blocks with T5's relative position bias.
//!
//! transformers' `MPNetEncoder`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/mpnet/modeling_mpnet.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("mpnet", &["mpnet"], config)
        .prefixes(&["mpnet.", ""])
        .blocks(
            "encoder.layer.{i}.",
            [
                Rule::linear("attention.query", &["attention.attn.q"]),
                Rule::linear("attention.key", &["attention.attn.k"]),
                Rule::linear("attention.value", &["attention.attn.v"]),
                Rule::linear("attention.output", &["attention.attn.o"]),
                Rule::norm("attention_norm", &["attention.LayerNorm"]),
                Rule::linear("feed_forward.up", &["intermediate.dense"]),
                Rule::linear("feed_forward.down", &["output.dense"]),
                Rule::norm("feed_forward_norm", &["output.LayerNorm"]),
            ],
        )
        .stack_rules([Rule::linear(
            "relative_bias",
            &["encoder.relative_attention_bias"],
        )])
        .ignored(&["*position_ids"])
        .outside(&[
            "embeddings.*",
            "pooler.*",
            "lm_head.*",
            "classifier.*",
            "qa_outputs.*",
        ])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let n_heads = json.size(&["num_attention_heads"])?;
    let attention = AttentionConfig::new(d_model, n_heads)?
        .with_dropout(json.number(&["attention_probs_dropout_prob"], 0.1)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-12)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Post)
        .with_residual_dropout(json.number(&["hidden_dropout_prob"], 0.1)?);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    let n_buckets = json
        .optional_size(&["relative_attention_num_buckets"])?
        .unwrap_or(32);
    let bias = RelativeBiasConfig {
        n_buckets,
        max_distance: 128,
        n_heads,
    };
    Ok(StackConfig::uniform(block, n_blocks, None).with_relative_bias(bias))
}
