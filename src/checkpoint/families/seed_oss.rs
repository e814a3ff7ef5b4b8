//! Seed-OSS: Llama's blocks with biases on queries, keys and values, and dropout after both sublayers.
//!
//! transformers' `SeedOssAttention`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/seed_oss/modeling_seed_oss.py>

use super::llama::{block, decoder, prefix_by_head, uniform, with_mlp_bias};
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("seed_oss", config).new_names(prefix_by_head)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let input_bias = json.flag(&["attention_bias"], true)?;
    let output_bias = json.flag(&["attention_out_bias"], false)?;
    let block = with_mlp_bias(
        json,
        block(json, AttentionBias::new(input_bias, output_bias))?,
    )?;
    uniform(
        json,
        block.with_residual_dropout(json.number(&["residual_dropout"], 0.1)?),
    )
}
