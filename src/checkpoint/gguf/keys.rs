//! The keys of GGUF beside those of transformers' `config.json`, one table for reading and for writing.

use serde_json::{Value, json};

use crate::checkpoint::files::BlockKind;
use crate::config::{BlockConfig, Position, RotaryConfig, StackConfig};

/// Architectures by their names there, with the `model_type` of each, the first of which a file reads as.
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

/// The `model_type` that a file of this architecture reads as, by the name there.
pub(super) fn model_type_of(architecture: &str, has_experts: bool) -> Option<&'static str> {
    if (architecture, has_experts) == ("llama", true) {
        return Some("mixtral");
    }
    let found = ARCHITECTURES.iter().find(|(name, _)| *name == architecture);
    found.map(|(_, model_type)| *model_type)
}

/// The architecture that a `model_type` is written as.
pub(super) fn architecture_of(model_type: &str) -> Option<&'static str> {
    let found = ARCHITECTURES.iter().find(|(_, known)| *known == model_type);
    found.map(|(name, _)| *name)
}

/// The names of all, for a message: those there, or transformers'.
pub(super) fn listed(side: fn(&(&'static str, &'static str)) -> &'static str) -> String {
    let mut all: Vec<&str> = ARCHITECTURES.iter().map(side).collect();
    all.dedup();
    all.join(", ")
}

/// What a key holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole number that must be there.
    Needed,
    /// A whole number.
    Size,
    /// A number, of 32 bits there.
    Number,
}

/// A key there without the architecture, the one of `config.json`, and its value where that does not say it.
pub(super) struct Key {
    pub gguf: &'static str,
    pub json: &'static str,
    pub kind: Kind,
    pub or: fn(&StackConfig) -> Value,
}

const fn key(
    gguf: &'static str,
    json: &'static str,
    kind: Kind,
    or: fn(&StackConfig) -> Value,
) -> Key {
    Key {
        gguf,
        json,
        kind,
        or,
    }
}

const GPT2: [Key; 6] = [
    key("block_count", "n_layer", Kind::Needed, n_layers),
    key("embedding_length", "n_embd", Kind::Needed, d_model),
    key("attention.head_count", "n_head", Kind::Needed, n_heads),
    key("feed_forward_length", "n_inner", Kind::Needed, d_ff),
    key("context_length", "n_positions", Kind::Size, |_| json!(1024)),
    key(
        "attention.layer_norm_epsilon",
        "layer_norm_epsilon",
        Kind::Number,
        eps,
    ),
];

const ALL_ELSE: [Key; 5] = [
    key("block_count", "num_hidden_layers", Kind::Needed, n_layers),
    key(
        "attention.head_count",
        "num_attention_heads",
        Kind::Needed,
        n_heads,
    ),
    key("embedding_length", "hidden_size", Kind::Needed, d_model),
    key(
        "feed_forward_length",
        "intermediate_size",
        Kind::Needed,
        d_ff,
    ),
    key(
        "context_length",
        "max_position_embeddings",
        Kind::Size,
        nothing,
    ),
];

const BERT: [Key; 1] = [key(
    "attention.layer_norm_epsilon",
    "layer_norm_eps",
    Kind::Number,
    eps,
)];

const DECODERS: [Key; 3] = [
    key(
        "attention.head_count_kv",
        "num_key_value_heads",
        Kind::Size,
        |stack| of_block(stack, |block| block.attention.n_kv_heads.into()),
    ),
    key(
        "attention.layer_norm_rms_epsilon",
        "rms_norm_eps",
        Kind::Number,
        eps,
    ),
    key("rope.freq_base", "rope_theta", Kind::Number, |stack| {
        rotary(stack, false).map_or(Value::Null, |rotary| json!(rotary.theta))
    }),
];

const HEADS: [Key; 1] = [key(
    "attention.key_length",
    "head_dim",
    Kind::Size,
    |stack| of_block(stack, |block| block.attention.head_dim.into()),
)];

const WINDOW: [Key; 1] = [key(
    "attention.sliding_window",
    "sliding_window",
    Kind::Size,
    nothing,
)];

const MIXTRAL: [Key; 2] = [
    key("expert_count", "num_local_experts", Kind::Size, n_experts),
    key(
        "expert_used_count",
        "num_experts_per_tok",
        Kind::Size,
        nothing,
    ),
];

const EXPERTS: [Key; 4] = [
    key("expert_count", "num_experts", Kind::Size, n_experts),
    key(
        "expert_used_count",
        "num_experts_per_tok",
        Kind::Size,
        nothing,
    ),
    key(
        "expert_feed_forward_length",
        "moe_intermediate_size",
        Kind::Needed,
        nothing,
    ),
    key(
        "expert_shared_feed_forward_length",
        "shared_expert_intermediate_size",
        Kind::Size,
        nothing,
    ),
];

const GEMMA2: [Key; 2] = [
    key(
        "attn_logit_softcapping",
        "attn_logit_softcapping",
        Kind::Number,
        |_| json!(50.0),
    ),
    key(
        "final_logit_softcapping",
        "final_logit_softcapping",
        Kind::Number,
        |_| json!(30.0),
    ),
];

const GEMMA3: [Key; 1] = [key(
    "rope.freq_base_swa",
    "rope_local_base_freq",
    Kind::Number,
    |stack| rotary(stack, true).map_or(json!(10000.0), |rotary| json!(rotary.theta)),
)];

/// The keys of a `model_type`.
pub(super) fn keys(model_type: &str) -> impl Iterator<Item = &'static Key> {
    let tables: &[&'static [Key]] = match model_type {
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

/// transformers has two names for it.
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

/// The rotation of the first block that has a window, or has none; else of the first.
pub(super) fn rotary(stack: &StackConfig, in_window: bool) -> Option<&RotaryConfig> {
    let mut blocks = stack.blocks.iter();
    let found = blocks.find(|block| block.attention.window.is_some() == in_window);
    match &found.or(stack.blocks.first())?.attention.position {
        Position::Rotary(rotary) => Some(rotary),
        _ => None,
    }
}

/// Kinds that a whole file may be made of, with their numbers in `general.file_type`.
pub(super) fn file_type(kind: BlockKind) -> u32 {
    match kind {
        BlockKind::Q4_0 => 2,
        BlockKind::Q8_0 => 7,
        BlockKind::Q4K => 14,
        BlockKind::Q6K => 18,
        _ => 1,
    }
}
