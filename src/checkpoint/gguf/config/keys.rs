//! Values that are written under the keys in a GGUF file where `config.json` does not say them.

use serde_json::{Value, json};

use crate::config::{BlockConfig, Position, RotaryConfig, StackConfig};
use candle_blocks_files::gguf::BlockKind;

/// Returns the value for a key in `config.json`.
pub(crate) fn of_stack(json: &str, stack: &StackConfig) -> Value {
    let block = |of: fn(&BlockConfig) -> Value| stack.blocks.first().map_or(Value::Null, of);
    match json {
        "num_hidden_layers" | "n_layer" => stack.layers.len().into(),
        "hidden_size" | "n_embd" => block(|block| block.d_model().into()),
        "num_attention_heads" | "n_head" => block(|block| block.attention.n_heads.into()),
        "num_key_value_heads" => block(|block| block.attention.n_kv_heads.into()),
        "head_dim" => block(|block| block.attention.head_dim.into()),
        "intermediate_size" | "n_inner" => block(|block| block.feed_forward.d_ff.into()),
        "layer_norm_epsilon" | "layer_norm_eps" | "rms_norm_eps" => {
            block(|block| json!(block.norm.eps))
        }
        "n_positions" => json!(1024),
        "rope_theta" => rotary(stack, false).map_or(Value::Null, |rotary| json!(rotary.theta)),
        "rope_local_base_freq" => rotary(stack, true).map_or(Value::Null, |own| json!(own.theta)),
        // transformers has two names for it.
        "num_experts" | "num_local_experts" => {
            let experts = |block: &BlockConfig| block.feed_forward.experts;
            let mut experts = stack.blocks.iter().filter_map(experts);
            experts.next().map(|experts| experts.n_experts).into()
        }
        _ => Value::Null,
    }
}

/// Returns the rotation from the first block with a window, or without; else from the first.
pub(crate) fn rotary(stack: &StackConfig, in_window: bool) -> Option<&RotaryConfig> {
    let mut blocks = stack.blocks.iter();
    let found = blocks.find(|block| block.attention.window.is_some() == in_window);
    match &found.or(stack.blocks.first())?.attention.position {
        Position::Rotary(rotary) => Some(rotary),
        _ => None,
    }
}

/// Returns the number in `general.file_type` for a kind that a whole file may have.
pub(crate) fn file_type(kind: BlockKind) -> u32 {
    match kind {
        BlockKind::Q4_0 => 2,
        BlockKind::Q8_0 => 7,
        BlockKind::Q4K => 14,
        BlockKind::Q6K => 18,
        _ => 1,
    }
}
