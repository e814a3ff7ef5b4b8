//! From the keys of a GGUF file to those of transformers' `config.json`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::keys::{Kind, keys, listed, model_type_of};
use crate::error::{Error, Result};

/// What a file says of itself, or will.
pub(super) struct Described<'g> {
    /// Whose, for messages.
    pub path: &'g Path,
    pub metadata: &'g BTreeMap<String, Value>,
    /// The shape of a tensor, by its name there.
    pub shape: &'g dyn Fn(&str) -> Option<Vec<usize>>,
    /// The numbers of a small tensor, by its name there.
    pub numbers: &'g dyn Fn(&str) -> Result<Option<Vec<f32>>>,
}

/// The keys of one architecture.
struct Keys<'g> {
    file: &'g Described<'g>,
    architecture: &'g str,
}

/// The `config.json` that a file's keys stand for.
///
/// # Errors
/// If the architecture is not read, or a key is missing or of another type.
pub(super) fn config(file: &Described) -> Result<Value> {
    let found = file
        .metadata
        .get("general.architecture")
        .and_then(Value::as_str);
    let keys = Keys {
        file,
        architecture: found.unwrap_or_default(),
    };
    let has_experts = keys.optional("expert_count").is_some();
    match model_type_of(keys.architecture, has_experts) {
        Some(model_type) => keys.config(model_type),
        None => Err(Error::ConfigKey {
            path: file.path.to_path_buf(),
            key: "\"general.architecture\"".to_string(),
            reason: format!(
                "found {:?}, and these are read: {}",
                keys.architecture,
                listed(|(architecture, _)| architecture)
            ),
        }),
    }
}

impl Keys<'_> {
    fn config(&self, model_type: &str) -> Result<Value> {
        let mut config = Map::new();
        let mut set = |key: &str, value: Value| {
            if !value.is_null() {
                config.insert(key.to_string(), value);
            }
        };
        set("model_type", model_type.into());
        for key in keys(model_type) {
            match key.kind {
                Kind::Needed => set(key.json, self.size(key.gguf)?.into()),
                _ => set(key.json, self.optional(key.gguf).unwrap_or(Value::Null)),
            }
        }
        let n_rows = |name: &str| (self.file.shape)(name).and_then(|shape| shape.first().copied());
        let is_there = |name: &str| (self.file.shape)(name).is_some();
        set("vocab_size", n_rows("token_embd.weight").into());
        set("tie_word_embeddings", (!is_there("output.weight")).into());
        match model_type {
            "gpt2" => return Ok(config.into()),
            "bert" => {
                set("type_vocab_size", n_rows("token_types.weight").into());
                return Ok(config.into());
            }
            _ => {}
        }
        let n_blocks = self.size("block_count")?;
        let n_heads = self.size("attention.head_count")?;
        let d_model = self.size("embedding_length")?;
        set("rope_scaling", self.rope_scaling()?);
        set("attention_bias", is_there("blk.0.attn_q.bias").into());
        let per_head = d_model / n_heads.max(1);
        let head_dim = match self.optional("attention.key_length") {
            Some(_) => self.size("attention.key_length")?,
            None => per_head,
        };
        match model_type {
            "qwen2_moe" | "qwen3_moe" => {
                set("norm_topk_prob", (model_type == "qwen3_moe").into());
            }
            // As llama.cpp has it: only the largest of either divides the width by the heads.
            "gemma2" => {
                let scalar = if n_blocks == 46 { per_head } else { head_dim };
                set("query_pre_attn_scalar", scalar.into());
            }
            "gemma3_text" => {
                let scalar = if n_blocks == 62 { per_head } else { head_dim };
                set("query_pre_attn_scalar", scalar.into());
                match self.optional("attention.sliding_window_pattern") {
                    Some(Value::Array(layers)) => set("layer_types", layer_types(&layers)),
                    period => set("sliding_window_pattern", period.unwrap_or(6.into())),
                }
            }
            "phi3" => {
                let turned = self.optional("rope.dimension_count");
                if let Some(turned) = turned.and_then(|found| found.as_f64()) {
                    set("partial_rotary_factor", json!(turned / head_dim as f64));
                }
                let original = self.optional("rope.scaling.original_context_length");
                set(
                    "original_max_position_embeddings",
                    original.unwrap_or(Value::Null),
                );
                set("pad_token_id", 0.into());
            }
            _ => {}
        }
        // What files leave out that were made before they said it.
        let mut default = |key: &str, value: Value| {
            config.entry(key).or_insert(value);
        };
        default("num_key_value_heads", n_heads.into());
        default("rope_theta", json!(10000.0));
        if model_type != "phi3" {
            default("head_dim", head_dim.into());
        }
        if model_type == "gemma2" {
            default("attn_logit_softcapping", json!(50.0));
            default("final_logit_softcapping", json!(30.0));
        }
        if model_type == "gemma3_text" {
            default("rope_local_base_freq", json!(10000.0));
        }
        Ok(config.into())
    }

    /// Of the rotation: by a kind and a factor, or a factor for each frequency in a tensor.
    fn rope_scaling(&self) -> Result<Value> {
        let of = self.file.numbers;
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
            .file
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
            path: self.file.path.to_path_buf(),
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
