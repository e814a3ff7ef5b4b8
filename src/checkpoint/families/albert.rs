//! ALBERT: BERT's blocks, each run at many layers.
//!
//! transformers' `AlbertTransformer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/albert/modeling_albert.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("albert", &["albert"], config)
        .prefixes(&["albert.", ""])
        .blocks(
            "encoder.albert_layer_groups.{i}.albert_layers.0.",
            [
                Rule::linear("attention.query", &["attention.query"]),
                Rule::linear("attention.key", &["attention.key"]),
                Rule::linear("attention.value", &["attention.value"]),
                Rule::linear("attention.output", &["attention.dense"]),
                Rule::norm("attention_norm", &["attention.LayerNorm"]),
                Rule::linear("feed_forward.up", &["ffn"]),
                Rule::linear("feed_forward.down", &["ffn_output"]),
                Rule::norm("feed_forward_norm", &["full_layer_layer_norm"]),
            ],
        )
        .ignored(&["*position_ids"])
        .outside(&[
            "embeddings.*",
            "encoder.embedding_hidden_mapping_in.*",
            "pooler*",
        ])
        .outside(&[
            "predictions.*",
            "sop_classifier.*",
            "classifier.*",
            "qa_outputs.*",
        ])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("inner_group_num", &[json!(1)])?;
    let d_model = json.size(&["hidden_size"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .with_dropout(json.number(&["attention_probs_dropout_prob"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::GeluTanh)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-12)?);
    let mut block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Post);
    block.residual.attention_dropout = json.number(&["hidden_dropout_prob"], 0.0)?;
    let n_layers = json.n_blocks(&["num_hidden_layers"])?;
    let groups = "num_hidden_groups";
    let n_groups = match json.optional_size(&[groups])? {
        Some(_) => json.n_blocks(&[groups])?, // each is a block
        None => 1,
    };
    // In transformers' floating-point numbers, which are not always the quotient of whole ones.
    let per_group = n_layers as f64 / n_groups as f64;
    let group = |layer| ((layer as f64 / per_group) as usize).min(n_groups.saturating_sub(1));
    let layers = (0..n_layers).map(group).collect();
    Ok(StackConfig::uniform(block, n_groups, None).with_layers(layers))
}
