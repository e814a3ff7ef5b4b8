//! GGUF's tensor names and those of transformers, and the steps by which the conversion changed some tensors.

use serde_json::Value;

use super::ConversionStep;

/// An architecture's tensor names.
pub(super) struct TensorNames {
    /// Names without `.weight` and `.bias`, in which `{i}` is a block's index and `{e}` an expert's index in a stack.
    table: &'static [&'static [(&'static str, &'static str)]],
}

const ENDS: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];
const ATTENTION: &[(&str, &str)] = &[
    ("blk.{i}.attn_q", "model.layers.{i}.self_attn.q_proj"),
    ("blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj"),
    ("blk.{i}.attn_v", "model.layers.{i}.self_attn.v_proj"),
    ("blk.{i}.attn_qkv", "model.layers.{i}.self_attn.qkv_proj"),
    ("blk.{i}.attn_output", "model.layers.{i}.self_attn.o_proj"),
    ("blk.{i}.attn_q_norm", "model.layers.{i}.self_attn.q_norm"),
    ("blk.{i}.attn_k_norm", "model.layers.{i}.self_attn.k_norm"),
    ("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
];
const NORM_BEFORE: &[(&str, &str)] = &[(
    "blk.{i}.ffn_norm",
    "model.layers.{i}.post_attention_layernorm",
)];
const FOUR_NORMS: &[(&str, &str)] = &[
    (
        "blk.{i}.post_attention_norm",
        "model.layers.{i}.post_attention_layernorm",
    ),
    (
        "blk.{i}.ffn_norm",
        "model.layers.{i}.pre_feedforward_layernorm",
    ),
    (
        "blk.{i}.post_ffw_norm",
        "model.layers.{i}.post_feedforward_layernorm",
    ),
];
const GATED: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate", "model.layers.{i}.mlp.gate_proj"),
    ("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj"),
    ("blk.{i}.ffn_down", "model.layers.{i}.mlp.down_proj"),
];
const FUSED_GATE: &[(&str, &str)] = &[
    ("blk.{i}.ffn_up", "model.layers.{i}.mlp.gate_up_proj"),
    ("blk.{i}.ffn_down", "model.layers.{i}.mlp.down_proj"),
];
const MIXTRAL: &[(&str, &str)] = &[
    (
        "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.block_sparse_moe.gate",
    ),
    (
        "blk.{i}.ffn_gate_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w1",
    ),
    (
        "blk.{i}.ffn_up_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w3",
    ),
    (
        "blk.{i}.ffn_down_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w2",
    ),
];
const EXPERTS: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate_inp", "model.layers.{i}.mlp.gate"),
    (
        "blk.{i}.ffn_gate_exps",
        "model.layers.{i}.mlp.experts.{e}.gate_proj",
    ),
    (
        "blk.{i}.ffn_up_exps",
        "model.layers.{i}.mlp.experts.{e}.up_proj",
    ),
    (
        "blk.{i}.ffn_down_exps",
        "model.layers.{i}.mlp.experts.{e}.down_proj",
    ),
    (
        "blk.{i}.ffn_gate_inp_shexp",
        "model.layers.{i}.mlp.shared_expert_gate",
    ),
    (
        "blk.{i}.ffn_gate_shexp",
        "model.layers.{i}.mlp.shared_expert.gate_proj",
    ),
    (
        "blk.{i}.ffn_up_shexp",
        "model.layers.{i}.mlp.shared_expert.up_proj",
    ),
    (
        "blk.{i}.ffn_down_shexp",
        "model.layers.{i}.mlp.shared_expert.down_proj",
    ),
];
const GPT2: &[(&str, &str)] = &[
    ("token_embd", "wte"),
    ("position_embd", "wpe"),
    ("output_norm", "ln_f"),
    ("output", "lm_head"),
    ("blk.{i}.attn_norm", "h.{i}.ln_1"),
    ("blk.{i}.attn_qkv", "h.{i}.attn.c_attn"),
    ("blk.{i}.attn_output", "h.{i}.attn.c_proj"),
    ("blk.{i}.ffn_norm", "h.{i}.ln_2"),
    ("blk.{i}.ffn_up", "h.{i}.mlp.c_fc"),
    ("blk.{i}.ffn_down", "h.{i}.mlp.c_proj"),
];
const BERT: &[(&str, &str)] = &[
    ("token_embd", "embeddings.word_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "embeddings.LayerNorm"),
    ("blk.{i}.attn_q", "encoder.layer.{i}.attention.self.query"),
    ("blk.{i}.attn_k", "encoder.layer.{i}.attention.self.key"),
    ("blk.{i}.attn_v", "encoder.layer.{i}.attention.self.value"),
    (
        "blk.{i}.attn_output",
        "encoder.layer.{i}.attention.output.dense",
    ),
    (
        "blk.{i}.attn_output_norm",
        "encoder.layer.{i}.attention.output.LayerNorm",
    ),
    ("blk.{i}.ffn_up", "encoder.layer.{i}.intermediate.dense"),
    ("blk.{i}.ffn_down", "encoder.layer.{i}.output.dense"),
    (
        "blk.{i}.layer_output_norm",
        "encoder.layer.{i}.output.LayerNorm",
    ),
];

impl TensorNames {
    /// Returns an architecture's names, given the `model_type` in its configuration.
    pub fn of(model_type: &str) -> Self {
        let table: &'static [&'static [_]] = match model_type {
            "gpt2" => &[GPT2],
            "bert" => &[BERT],
            "mixtral" => &[ENDS, ATTENTION, NORM_BEFORE, MIXTRAL],
            "qwen2_moe" | "qwen3_moe" => &[ENDS, ATTENTION, NORM_BEFORE, EXPERTS],
            "gemma2" | "gemma3_text" => &[ENDS, ATTENTION, FOUR_NORMS, GATED],
            "phi3" => &[ENDS, ATTENTION, NORM_BEFORE, FUSED_GATE],
            _ => &[ENDS, ATTENTION, NORM_BEFORE, GATED],
        };
        Self { table }
    }

    /// Returns transformers' name for a tensor, with `{e}` if the tensor stacks experts.
    pub fn translated(&self, name: &str) -> Option<String> {
        let (module, parameter) = name.rsplit_once('.')?;
        let (pattern, block) = match module
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'))
        {
            Some((block, local)) => (format!("blk.{{i}}.{local}"), block),
            None => (module.to_string(), ""),
        };
        let mut all = self.table.iter().copied().flatten();
        let (_, translated) = all.find(|(known, _)| *known == pattern)?;
        Some(format!("{}.{parameter}", translated.replace("{i}", block)))
    }

    /// Returns GGUF's name for a name in transformers, and the expert's index in a stack. Names may lack the base model's
    /// prefix, or have one where the table has none.
    pub fn original(&self, name: &str) -> Option<(String, Option<usize>)> {
        let (module, parameter) = name.rsplit_once('.')?;
        let behind_prefix = module.split_once('.').map_or(module, |(_, rest)| rest);
        let with_prefix = format!("model.{module}");
        let mut all = self.table.iter().copied().flatten();
        all.find_map(|(known, translated)| {
            let [block, expert] = [module, behind_prefix, &with_prefix]
                .into_iter()
                .find_map(|module| numbers(translated, module))?;
            let known = match block {
                Some(block) => known.replace("{i}", &block.to_string()),
                None => known.to_string(),
            };
            Some((format!("{known}.{parameter}"), expert))
        })
    }
}

/// Returns the values that a name has for `{i}` and `{e}` in a pattern.
fn numbers(pattern: &str, name: &str) -> Option<[Option<usize>; 2]> {
    let mut found = [None, None];
    let mut parts = name.split('.');
    for expected in pattern.split('.') {
        let part = parts.next()?;
        match expected {
            "{i}" => found[0] = Some(part.parse().ok()?),
            "{e}" => found[1] = Some(part.parse().ok()?),
            _ if expected != part => return None,
            _ => {}
        }
    }
    parts.next().is_none().then_some(found)
}

/// Returns the step by which the conversion changed a tensor with this name, which reading undoes.
pub(super) fn step(model_type: &str, config: &Value, name: &str) -> ConversionStep {
    let heads = |key: &str| config.get(key).and_then(Value::as_u64).unwrap_or(1) as usize;
    let is_llama = matches!(model_type, "llama" | "mixtral");
    match name
        .rsplit_once('.')
        .map(|(module, _)| module.rsplit('.').next().unwrap_or(module))
    {
        Some("attn_q") if is_llama => ConversionStep::Unpermute(heads("num_attention_heads")),
        Some("attn_k") if is_llama => ConversionStep::Unpermute(heads("num_key_value_heads")),
        Some(module) if module.ends_with("norm") && model_type.starts_with("gemma") => {
            ConversionStep::LessOne
        }
        Some("ffn_gate_inp_shexp") => ConversionStep::OneRow,
        _ => ConversionStep::None,
    }
}
