//! From the keys of a GGUF file to those of transformers' `config.json`.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::checkpoint::files::{Gguf, TensorFiles};
use crate::error::{Error, Result};

/// Architectures that are read, by their names there.
const ARCHITECTURES: [&str; 10] = [
    "llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma2", "gemma3", "phi3", "gpt2", "bert",
];

/// The keys of one architecture.
struct Keys<'g> {
    gguf: &'g Gguf,
    path: &'g Path,
    architecture: &'g str,
}

/// The `config.json` that a file's keys stand for.
///
/// # Errors
/// If the architecture is not read, or a key is missing or of another type.
pub(super) fn config(files: &TensorFiles, gguf: &Gguf) -> Result<Value> {
    let path = files.path();
    let fail = |key: &str, reason: String| Error::ConfigKey {
        path: path.to_path_buf(),
        key: format!("{key:?}"),
        reason,
    };
    let found = gguf
        .metadata
        .get("general.architecture")
        .and_then(Value::as_str);
    let architecture = found.unwrap_or_default();
    if !ARCHITECTURES.contains(&architecture) {
        let known = ARCHITECTURES.join(", ");
        return Err(fail(
            "general.architecture",
            format!("found {architecture:?}, and these are read: {known}"),
        ));
    }
    let keys = Keys {
        gguf,
        path,
        architecture,
    };
    keys.config(files)
}

impl Keys<'_> {
    fn config(&self, files: &TensorFiles) -> Result<Value> {
        let n_blocks = self.size("block_count")?;
        let n_heads = self.size("attention.head_count")?;
        let d_model = self.size("embedding_length")?;
        let mut config = Map::new();
        let mut set = |key: &str, value: Value| {
            if !value.is_null() {
                config.insert(key.to_string(), value);
            }
        };
        let is_there = |name: &str| self.gguf.tensors.iter().any(|tensor| tensor.name == name);
        let n_words = self
            .gguf
            .tensors
            .iter()
            .find(|tensor| tensor.name == "token_embd.weight");
        set(
            "vocab_size",
            n_words
                .and_then(|words| words.shape.first().copied())
                .into(),
        );
        set("tie_word_embeddings", (!is_there("output.weight")).into());
        let eps = self
            .optional("attention.layer_norm_rms_epsilon")
            .or(self.optional("attention.layer_norm_epsilon"));
        let eps = eps.unwrap_or(Value::Null);
        let positions = self.optional("context_length").unwrap_or(Value::Null);
        if self.architecture == "gpt2" {
            set("model_type", "gpt2".into());
            set("n_embd", d_model.into());
            set("n_layer", n_blocks.into());
            set("n_head", n_heads.into());
            set("n_inner", self.size("feed_forward_length")?.into());
            set("n_positions", positions);
            set("layer_norm_epsilon", eps);
            return Ok(config.into());
        }
        set("hidden_size", d_model.into());
        set("num_hidden_layers", n_blocks.into());
        set("num_attention_heads", n_heads.into());
        set(
            "intermediate_size",
            self.size("feed_forward_length")?.into(),
        );
        set("max_position_embeddings", positions);
        if self.architecture == "bert" {
            set("model_type", "bert".into());
            set("layer_norm_eps", eps);
            set("type_vocab_size", 2.into());
            return Ok(config.into());
        }
        let n_kv_heads = self
            .optional("attention.head_count_kv")
            .unwrap_or(n_heads.into());
        set("num_key_value_heads", n_kv_heads);
        set("rms_norm_eps", eps);
        set(
            "rope_theta",
            self.optional("rope.freq_base").unwrap_or(json!(10000.0)),
        );
        let head_dim = match self.optional("attention.key_length") {
            Some(found) => found,
            None => (d_model / n_heads.max(1)).into(),
        };
        let width_of_head = head_dim.as_u64().unwrap_or(1);
        set("rope_scaling", self.rope_scaling(files)?);
        set("attention_bias", is_there("blk.0.attn_q.bias").into());
        if self.architecture != "phi3" {
            set("head_dim", head_dim);
        }
        let window = self
            .optional("attention.sliding_window")
            .unwrap_or(Value::Null);
        let experts = self.optional("expert_count").unwrap_or(Value::Null);
        let per_token = self.optional("expert_used_count").unwrap_or(Value::Null);
        match self.architecture {
            "llama" if !experts.is_null() => {
                set("model_type", "mixtral".into());
                set("num_local_experts", experts);
                set("num_experts_per_tok", per_token);
            }
            "qwen2moe" | "qwen3moe" => {
                let is_third = self.architecture == "qwen3moe";
                set(
                    "model_type",
                    if is_third { "qwen3_moe" } else { "qwen2_moe" }.into(),
                );
                set("num_experts", experts);
                set("num_experts_per_tok", per_token);
                set("norm_topk_prob", is_third.into());
                set(
                    "moe_intermediate_size",
                    self.size("expert_feed_forward_length")?.into(),
                );
                let shared = self.optional("expert_shared_feed_forward_length");
                set(
                    "shared_expert_intermediate_size",
                    shared.unwrap_or(Value::Null),
                );
            }
            "gemma2" => {
                set("model_type", "gemma2".into());
                set("sliding_window", window);
                // As llama.cpp has it: only the model of 46 blocks divides the width by the heads.
                let scalar = if n_blocks == 46 {
                    d_model / n_heads.max(1)
                } else {
                    width_of_head as usize
                };
                set("query_pre_attn_scalar", scalar.into());
                set(
                    "attn_logit_softcapping",
                    self.optional("attn_logit_softcapping")
                        .unwrap_or(json!(50.0)),
                );
                set(
                    "final_logit_softcapping",
                    self.optional("final_logit_softcapping")
                        .unwrap_or(json!(30.0)),
                );
            }
            "gemma3" => {
                set("model_type", "gemma3_text".into());
                set("sliding_window", window);
                let scalar = if n_blocks == 62 {
                    d_model / n_heads.max(1)
                } else {
                    width_of_head as usize
                };
                set("query_pre_attn_scalar", scalar.into());
                // Older files do not say them; these are those of all models then.
                let local = self.optional("rope.freq_base_swa");
                set("rope_local_base_freq", local.unwrap_or(json!(10000.0)));
                match self.optional("attention.sliding_window_pattern") {
                    Some(Value::Array(layers)) => set("layer_types", layer_types(&layers)),
                    period => set("sliding_window_pattern", period.unwrap_or(6.into())),
                }
            }
            "phi3" => {
                set("model_type", "phi3".into());
                set("sliding_window", window);
                let turned = self
                    .optional("rope.dimension_count")
                    .and_then(|found| found.as_f64());
                if let Some(turned) = turned {
                    set(
                        "partial_rotary_factor",
                        json!(turned / width_of_head as f64),
                    );
                }
                let original = self.optional("rope.scaling.original_context_length");
                set(
                    "original_max_position_embeddings",
                    original.unwrap_or(Value::Null),
                );
                set("pad_token_id", 0.into());
            }
            other => set("model_type", other.into()),
        }
        Ok(config.into())
    }

    /// Of the rotation: by a kind and a factor, or a factor for each frequency in a tensor.
    fn rope_scaling(&self, files: &TensorFiles) -> Result<Value> {
        let of = |name: &str| -> Result<Option<Vec<f32>>> {
            if !files.contains(name) {
                return Ok(None);
            }
            Ok(Some(files.read(name)?.flatten_all()?.to_vec1::<f32>()?))
        };
        let original = self.optional("rope.scaling.original_context_length");
        if let Some(factors) = of("rope_freqs.weight")? {
            // One table for all lengths.
            let original = self.optional("context_length").unwrap_or(json!(1));
            return Ok(json!({
                "rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0,
                "original_max_position_embeddings": original,
            }));
        }
        if let (Some(long), Some(short)) = (
            of("rope_factors_long.weight")?,
            of("rope_factors_short.weight")?,
        ) {
            let mut scaling =
                json!({"rope_type": "longrope", "short_factor": short, "long_factor": long});
            if let Some(factor) = self.optional("rope.scaling.attn_factor") {
                scaling["attention_factor"] = factor;
            }
            if let Some(original) = original {
                scaling["original_max_position_embeddings"] = original;
            }
            return Ok(scaling);
        }
        let kind = self.optional("rope.scaling.type");
        match kind.as_ref().and_then(Value::as_str) {
            None | Some("none") => Ok(Value::Null),
            Some(kind @ ("linear" | "yarn")) => {
                let factor = self.optional("rope.scaling.factor").unwrap_or(json!(1.0));
                let mut scaling = json!({"rope_type": kind, "factor": factor});
                if let Some(original) = original {
                    scaling["original_max_position_embeddings"] = original;
                }
                Ok(scaling)
            }
            Some(other) => {
                let reason = format!("{other:?} is not read, only \"linear\" and \"yarn\"");
                Err(self.error("rope.scaling.type", reason))
            }
        }
    }

    fn optional(&self, key: &str) -> Option<Value> {
        let found = self
            .gguf
            .metadata
            .get(&format!("{}.{key}", self.architecture))?;
        (!found.is_null()).then(|| found.clone())
    }

    fn size(&self, key: &str) -> Result<usize> {
        let found = self.optional(key);
        let size = found
            .as_ref()
            .and_then(Value::as_u64)
            .and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| {
            let found = found.map_or("nothing".to_string(), |found| found.to_string());
            self.error(key, format!("found {found}, expected a whole number"))
        })
    }

    fn error(&self, key: &str, reason: String) -> Error {
        Error::ConfigKey {
            path: self.path.to_path_buf(),
            key: format!("\"{}.{key}\"", self.architecture),
            reason,
        }
    }
}

/// From a truth value for each layer that has a window.
fn layer_types(layers: &[Value]) -> Value {
    let kind = |is_sliding: &Value| match is_sliding {
        Value::Bool(true) => "sliding_attention",
        _ => "full_attention",
    };
    layers.iter().map(kind).collect()
}
