//! GGUF's keys and the matching keys of transformers' `config.json`, in one table for reading and writing.

use serde_json::{Value, json};

use crate::checkpoint::files::BlockKind;
use crate::config::{BlockConfig, Position, RotaryConfig, StackConfig};

/// Architectures by name in GGUF, with the `model_type` of each. The first one is used for reading.
const ARCHITECTURES: [(&str, &str); 12] = [
    ("llama", "llama"),
    ("llama", "mistral"),
    ("llama", "mixtral"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen2moe", "qwen2_moe"),
    ("qwen3moe", "qwen3_moe"),
    ("gemma2", "gemma2"),
    ("gemma3", "gemma3_text"),
    ("phi3", "phi3"),
    ("gpt2", "gpt2"),
    ("bert", "bert"),
];

/// Returns the `model_type` for an architecture's name in GGUF.
pub(super) fn model_type_of(architecture: &str, has_experts: bool) -> Option<&'static str> {
    if (architecture, has_experts) == ("llama", true) {
        return Some("mixtral");
    }
    let found = ARCHITECTURES.iter().find(|(name, _)| *name == architecture);
    found.map(|(_, model_type)| *model_type)
}

/// Returns the architecture for a `model_type`.
pub(super) fn architecture_of(model_type: &str) -> Option<&'static str> {
    let found = ARCHITECTURES.iter().find(|(_, known)| *known == model_type);
    found.map(|(name, _)| *name)
}

/// Returns all names of one side, GGUF's or transformers', for a message.
pub(super) fn listed(side: fn(&(&'static str, &'static str)) -> &'static str) -> String {
    let mut all: Vec<&str> = ARCHITECTURES.iter().map(side).collect();
    all.dedup();
    all.join(", ")
}

/// The kind of value that a key has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyKind {
    /// A required integer.
    Needed,
    /// An optional integer.
    Size,
    /// A number, stored as f32 in GGUF.
    Number,
}

/// A key in GGUF without the architecture's name, its key in `config.json`, and the default value of the latter.
pub(super) struct GgufKey {
    pub gguf: &'static str,
    pub json: &'static str,
    pub kind: KeyKind,
    pub or: fn(&StackConfig) -> Value,
}

const fn key(
    gguf: &'static str,
    json: &'static str,
    kind: KeyKind,
    or: fn(&StackConfig) -> Value,
) -> GgufKey {
    GgufKey {
        gguf,
        json,
        kind,
        or,
    }
}

const GPT2: [GgufKey; 6] = [
    key("block_count", "n_layer", KeyKind::Needed, n_layers),
    key("embedding_length", "n_embd", KeyKind::Needed, d_model),
    key("attention.head_count", "n_head", KeyKind::Needed, n_heads),
    key("feed_forward_length", "n_inner", KeyKind::Needed, d_ff),
    key("context_length", "n_positions", KeyKind::Size, |_| {
        json!(1024)
    }),
    key(
        "attention.layer_norm_epsilon",
        "layer_norm_epsilon",
        KeyKind::Number,
        eps,
    ),
];

const ALL_ELSE: [GgufKey; 5] = [
    key(
        "block_count",
        "num_hidden_layers",
        KeyKind::Needed,
        n_layers,
    ),
    key(
        "attention.head_count",
        "num_attention_heads",
        KeyKind::Needed,
        n_heads,
    ),
    key("embedding_length", "hidden_size", KeyKind::Needed, d_model),
    key(
        "feed_forward_length",
        "intermediate_size",
        KeyKind::Needed,
        d_ff,
    ),
    key(
        "context_length",
        "max_position_embeddings",
        KeyKind::Size,
        nothing,
    ),
];

const BERT: [GgufKey; 1] = [key(
    "attention.layer_norm_epsilon",
    "layer_norm_eps",
    KeyKind::Number,
    eps,
)];

const DECODERS: [GgufKey; 3] = [
    key(
        "attention.head_count_kv",
        "num_key_value_heads",
        KeyKind::Size,
        |stack| of_block(stack, |block| block.attention.n_kv_heads.into()),
    ),
    key(
        "attention.layer_norm_rms_epsilon",
        "rms_norm_eps",
        KeyKind::Number,
        eps,
    ),
    key("rope.freq_base", "rope_theta", KeyKind::Number, |stack| {
        rotary(stack, false).map_or(Value::Null, |rotary| json!(rotary.theta))
    }),
];

const HEADS: [GgufKey; 1] = [key(
    "attention.key_length",
    "head_dim",
    KeyKind::Size,
    |stack| of_block(stack, |block| block.attention.head_dim.into()),
)];

const WINDOW: [GgufKey; 1] = [key(
    "attention.sliding_window",
    "sliding_window",
    KeyKind::Size,
    nothing,
)];

const MIXTRAL: [GgufKey; 2] = [
    key(
        "expert_count",
        "num_local_experts",
        KeyKind::Size,
        n_experts,
    ),
    key(
        "expert_used_count",
        "num_experts_per_tok",
        KeyKind::Size,
        nothing,
    ),
];

const EXPERTS: [GgufKey; 4] = [
    key("expert_count", "num_experts", KeyKind::Size, n_experts),
    key(
        "expert_used_count",
        "num_experts_per_tok",
        KeyKind::Size,
        nothing,
    ),
    key(
        "expert_feed_forward_length",
        "moe_intermediate_size",
        KeyKind::Needed,
        nothing,
    ),
    key(
        "expert_shared_feed_forward_length",
        "shared_expert_intermediate_size",
        KeyKind::Size,
        nothing,
    ),
];

const GEMMA2: [GgufKey; 2] = [
    key(
        "attn_logit_softcapping",
        "attn_logit_softcapping",
        KeyKind::Number,
        |_| json!(50.0),
    ),
    key(
        "final_logit_softcapping",
        "final_logit_softcapping",
        KeyKind::Number,
        |_| json!(30.0),
    ),
];

const GEMMA3: [GgufKey; 1] = [key(
    "rope.freq_base_swa",
    "rope_local_base_freq",
    KeyKind::Number,
    |stack| rotary(stack, true).map_or(json!(10000.0), |rotary| json!(rotary.theta)),
)];

/// Returns the keys for a `model_type`.
pub(super) fn keys(model_type: &str) -> impl Iterator<Item = &'static GgufKey> {
    let tables: &[&'static [GgufKey]] = match model_type {
        "gpt2" => &[&GPT2],
        "bert" => &[&ALL_ELSE, &BERT],
        "mixtral" => &[&ALL_ELSE, &DECODERS, &HEADS, &MIXTRAL],
        "qwen2_moe" | "qwen3_moe" => &[&ALL_ELSE, &DECODERS, &HEADS, &EXPERTS],
        "gemma2" => &[&ALL_ELSE, &DECODERS, &HEADS, &WINDOW, &GEMMA2],
        "gemma3_text" => &[&ALL_ELSE, &DECODERS, &HEADS, &WINDOW, &GEMMA3],
        "phi3" => &[&ALL_ELSE, &DECODERS, &WINDOW],
        _ => &[&ALL_ELSE, &DECODERS, &HEADS],
    };
    tables.iter().flat_map(|table| table.iter())
}

fn nothing(_: &StackConfig) -> Value {
    Value::Null
}

fn of_block(stack: &StackConfig, of: impl Fn(&BlockConfig) -> Value) -> Value {
    stack.blocks.first().map_or(Value::Null, of)
}

fn n_layers(stack: &StackConfig) -> Value {
    stack.layers.len().into()
}

fn d_model(stack: &StackConfig) -> Value {
    of_block(stack, |block| block.d_model().into())
}

fn n_heads(stack: &StackConfig) -> Value {
    of_block(stack, |block| block.attention.n_heads.into())
}

fn d_ff(stack: &StackConfig) -> Value {
    of_block(stack, |block| block.feed_forward.d_ff.into())
}

/// Returns the number of experts; transformers has two names for it.
fn n_experts(stack: &StackConfig) -> Value {
    let mut experts = stack
        .blocks
        .iter()
        .filter_map(|block| block.feed_forward.experts.as_ref());
    experts.next().map(|experts| experts.n_experts).into()
}

fn eps(stack: &StackConfig) -> Value {
    of_block(stack, |block| json!(block.norm.eps))
}

/// Returns the rotation of the first block with a window, or without one; if there is none, of the first block.
pub(super) fn rotary(stack: &StackConfig, in_window: bool) -> Option<&RotaryConfig> {
    let mut blocks = stack.blocks.iter();
    let found = blocks.find(|block| block.attention.window.is_some() == in_window);
    match &found.or(stack.blocks.first())?.attention.position {
        Position::Rotary(rotary) => Some(rotary),
        _ => None,
    }
}

/// Returns the number in `general.file_type` for types that a whole file may have.
pub(super) fn file_type(kind: BlockKind) -> u32 {
    match kind {
        BlockKind::Q4_0 => 2,
        BlockKind::Q8_0 => 7,
        BlockKind::Q4K => 14,
        BlockKind::Q6K => 18,
        _ => 1,
    }
}
