//! MPNet: BERT's blocks with T5's relative position bias.
//!
//! transformers' `MPNetEncoder`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/mpnet/modeling_mpnet.py>

use super::{bert::block, prelude::*};

pub(super) fn family() -> Family {
    Family::new("mpnet", &["mpnet"], config)
        .prefixes(&["mpnet.", ""])
        .block("encoder.layer.{i}.")
        .block_rules([
            Rule::linear("attention.query", &["attention.attn.q"]),
            Rule::linear("attention.key", &["attention.attn.k"]),
            Rule::linear("attention.value", &["attention.attn.v"]),
            Rule::linear("attention.output", &["attention.attn.o"]),
            Rule::norm("attention_norm", &["attention.LayerNorm"]),
            Rule::linear("feed_forward.up", &["intermediate.dense"]),
            Rule::linear("feed_forward.down", &["output.dense"]),
            Rule::norm("feed_forward_norm", &["output.LayerNorm"]),
        ])
        .stack_rules([Rule::linear(
            "relative_bias",
            &["encoder.relative_attention_bias"],
        )])
        .ignored(&["*position_ids"])
        .outside(&["embeddings.*", "pooler.*", "lm_head.*"])
        .outside(&["classifier.*", "qa_outputs.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let block = block(json)?;
    let bias = RelativeBiasConfig {
        n_buckets: json.size_or(&["relative_attention_num_buckets"], 32)?,
        max_distance: 128,
        n_heads: block.attention.n_heads,
    };
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, None).with_relative_bias(bias))
}
