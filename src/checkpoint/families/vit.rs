//! ViT and DeiT: pre-norm encoders of image patches, with BERT's names.
//!
//! transformers' `ViTLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/vit/modeling_vit.py>

use super::{bert::block, prelude::*};

pub(super) fn family() -> Family {
    Family::new("vit", &["vit", "deit"], config)
        .prefixes(&["vit.", "deit.", ""])
        .block("encoder.layer.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["layernorm_before"]),
            Rule::linear("attention.query", &["attention.attention.query"]),
            Rule::linear("attention.key", &["attention.attention.key"]),
            Rule::linear("attention.value", &["attention.attention.value"]),
            Rule::linear("attention.output", &["attention.output.dense"]),
            Rule::norm("feed_forward_norm", &["layernorm_after"]),
            Rule::linear("feed_forward.up", &["intermediate.dense"]),
            Rule::linear("feed_forward.down", &["output.dense"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["layernorm"])])
        .outside(&["embeddings.*", "pooler.*", "*classifier.*", "decoder.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let json = &json.with_default("attention_probs_dropout_prob", 0.0);
    let mut block = block(&json.with_default("hidden_dropout_prob", 0.0))?;
    block.attention.bias = AttentionBias::new(json.flag(&["qkv_bias"], true)?, true);
    block.attention_placement = NormPlacement::Pre;
    block.feed_forward_placement = NormPlacement::Pre;
    let (n_blocks, norm) = (json.n_blocks(&["num_hidden_layers"])?, block.norm);
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}
