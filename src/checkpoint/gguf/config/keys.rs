//! Values that are written under the keys in a GGUF file where `config.json` does not say them.

use serde_json::{Value, json};

use crate::config::{BlockConfig, HeadLayout, Position, RotaryConfig, StackConfig};
use candle_blocks_kernels::storage::BlockKind;

/// Returns the value for a key in `config.json`.
pub(crate) fn of_stack(json: &str, stack: &StackConfig) -> Value {
    let block = |of: fn(&BlockConfig) -> Value| stack.blocks.first().map_or(Value::Null, of);
    let heads = |of: fn(HeadLayout) -> usize| {
        let heads = stack.blocks.iter().find_map(|block| block.facts().heads);
        heads.map(of).into()
    };
    match json {
        "num_hidden_layers" | "n_layer" => stack.layers.len().into(),
        "hidden_size" | "n_embd" => block(|block| block.d_model().into()),
        "num_attention_heads" | "n_head" => heads(|heads| heads.n_heads),
        "num_key_value_heads" => heads(|heads| heads.n_kv_heads),
        "head_dim" => heads(|heads| heads.head_dim),
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

/// Returns the rotation from the first attention with a window, or without; else from the first.
pub(crate) fn rotary(stack: &StackConfig, in_window: bool) -> Option<&RotaryConfig> {
    let attentions = || stack.blocks.iter().flat_map(BlockConfig::attention);
    let found = attentions().find(|attention| attention.window.is_some() == in_window);
    match &found.or(attentions().next())?.position {
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
