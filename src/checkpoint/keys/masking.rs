//! `is_causal`, a key in `config.json` that transformers' shared mask code reads for every class.
//!
//! `create_causal_mask`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/masking_utils.py>

use serde_json::Value;

use crate::checkpoint::config_json::ConfigJson;
use crate::config::{BlockConfig, StackConfig, Visibility};
use crate::error::Result;

const KEY: &str = "is_causal";

/// Returns the stack with the masks that the file requests. If the file sets `is_causal` to false, each token attends to all
/// others, or to a window on both sides.
///
/// # Errors
/// If the result in transformers would depend on padding or on the attention implementation.
pub(crate) fn masked(json: &ConfigJson, stack: StackConfig) -> Result<StackConfig> {
    let Some(said) = json.at(KEY) else {
        return Ok(stack);
    };
    let is_null = said.is_null();
    let is_causal = !is_null && json.flag(&[KEY], true)?;
    let attentions = || stack.blocks.iter().flat_map(BlockConfig::attention);
    let sees = |visibility| attentions().any(|attention| attention.visibility == visibility);
    let only = |usual: bool| json.only(KEY, &[Value::Bool(usual)]);
    if is_causal && sees(Visibility::Bidirectional) {
        // transformers' blocks would be causal only in a batch without padding.
        only(false)?;
    }
    if is_null && sees(Visibility::Causal) {
        return Err(json.error(&[KEY], "null is not supported, only true or false"));
    }
    let is_bound = stack.relative_bias.is_some() || attentions().any(|a| a.chunk.is_some());
    if !is_causal && sees(Visibility::Causal) && is_bound {
        // Chunks and distances remain those of causal attention.
        only(true)?;
    }
    Ok(match is_causal {
        true => stack,
        false => stack
            .with_each_attention(|_, attention| attention.visibility = Visibility::Bidirectional),
    })
}
