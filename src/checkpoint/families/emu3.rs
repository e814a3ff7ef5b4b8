//! Emu3's text: Llama's blocks, whose dropout applies to attention and residuals.
//!
//! transformers' `Emu3DecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/emu3/modeling_emu3.py>

use super::llama::{biased_block, decoder, uniform};
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("emu3_text_model", config)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let block = biased_block(json)?;
    let dropout = block.attention()?.dropout;
    uniform(json, block.with_residual_dropout(dropout))
}
