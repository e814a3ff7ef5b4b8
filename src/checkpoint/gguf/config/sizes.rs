//! Keys in a GGUF file that give a tensor's shape, for messages about tensors that do not fit.

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::gguf::config::Keys;
use crate::checkpoint::gguf::described;
use crate::error::{Error, Result};

/// Parts of a tensor's name, and keys that decide whether there is such a tensor, and its shape. The first line that fits counts.
const SIZES: [(&str, &str); 8] = [
    (
        "shared_expert",
        "expert_shared_count expert_shared_feed_forward_length expert_feed_forward_length leading_dense_block_count",
    ),
    (
        "experts router block_sparse_moe mlp.gate. mixer.gate.",
        "expert_count expert_feed_forward_length feed_forward_length leading_dense_block_count interleave_moe_layer_step",
    ),
    (
        "q_a_ q_b_ kv_a_ kv_b_",
        "attention.q_lora_rank attention.kv_lora_rank attention.key_length_mla attention.value_length_mla \
         attention.key_length attention.value_length attention.head_count rope.dimension_count",
    ),
    (
        "linear_attn mamba. mixer.in mixer.conv mixer.norm mixer.A mixer.D mixer.dt mixer.x mixer.out",
        "ssm.time_step_rank ssm.group_count ssm.inner_size ssm.state_size ssm.conv_kernel full_attention_interval",
    ),
    ("per_layer", "embedding_length_per_layer_input"),
    ("altup", "altup.num_inputs"),
    (
        "attn attention Attention mixer.q mixer.k mixer.v mixer.o",
        "attention.head_count attention.head_count_kv attention.key_length attention.value_length",
    ),
    (
        "mlp ffn feed_forward fc dense Dense mixer",
        "feed_forward_length leading_dense_block_count interleave_moe_layer_step expert_count",
    ),
];
/// Keys for all tensors.
const OF_ALL: &str = "embedding_length block_count";

/// Adds to an error about a tensor the keys that the file describes it by, if this is a GGUF file that describes itself.
pub(in crate::checkpoint) fn with_keys(files: &TensorFiles, tensor: &str, error: Error) -> Error {
    let keys = files
        .own_keys()
        .and_then(|gguf| described(files, gguf, |file| suspected(&Keys::of(file), tensor)).ok());
    match keys {
        Some(keys) if !keys.is_empty() => Error::FileKeys {
            error: Box::new(error),
            keys,
        },
        _ => error,
    }
}

/// Returns the keys that the architecture reads for such a tensor, with their values.
fn suspected(keys: &Keys, tensor: &str) -> Result<Vec<String>> {
    if let Some(entry) = keys.entry() {
        keys.config(entry)?;
    }
    let read = keys.read();
    let fits = |(parts, _): &&(&str, &str)| parts.split(' ').any(|part| tensor.contains(part));
    let part_sizes = SIZES.iter().find(fits).map_or("", |(_, keys)| *keys);
    let all = part_sizes.split(' ').chain(OF_ALL.split(' '));
    let written = |key: &str| {
        let name = format!("\"{}.{key}\"", keys.architecture);
        match keys.peek(key) {
            Some(value) => format!("{name} {value}"),
            None => format!("{name}, which is missing"),
        }
    };
    Ok(all.filter(|key| read.contains(*key)).map(written).collect())
}
