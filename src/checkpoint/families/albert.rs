//! ALBERT: BERT's blocks, each run at many layers.
//!
//! transformers' `AlbertTransformer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/albert/modeling_albert.py>

use super::{bert::block, prelude::*};

pub(super) fn family() -> Family {
    Family::new("albert", &["albert"], config)
        .prefixes(&["albert.", ""])
        .block("encoder.albert_layer_groups.{i}.albert_layers.0.")
        .block_rules([
            Rule::linear("attention.query", &["attention.query"]),
            Rule::linear("attention.key", &["attention.key"]),
            Rule::linear("attention.value", &["attention.value"]),
            Rule::linear("attention.output", &["attention.dense"]),
            Rule::norm("attention_norm", &["attention.LayerNorm"]),
            Rule::linear("feed_forward.up", &["ffn"]),
            Rule::linear("feed_forward.down", &["ffn_output"]),
            Rule::norm("feed_forward_norm", &["full_layer_layer_norm"]),
        ])
        .ignored(&["*position_ids"])
        .outside(&["embeddings.*"])
        .outside(&["encoder.embedding_hidden_mapping_in.*", "pooler*"])
        .outside(&["predictions.*", "sop_classifier.*", "classifier.*"])
        .outside(&["qa_outputs.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("inner_group_num", &[json!(1)])?;
    let json = &json.with_default("attention_probs_dropout_prob", 0.0);
    let json = &json.with_default("hidden_dropout_prob", 0.0);
    let mut block = block(&json.with_default("hidden_act", "gelu_new"))?;
    block.residual.feed_forward_dropout = 0.0;
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
