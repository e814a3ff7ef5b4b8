//! Converts a GGUF file's keys to those of transformers' `config.json`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::keys::{KeyKind, keys, listed, model_type_of};
use super::unread::check_type;
use crate::error::{Error, Result};

/// The description in a file, or for a new file.
pub(super) struct Described<'g> {
    /// The file's path, for messages.
    pub path: &'g Path,
    pub metadata: &'g BTreeMap<String, Value>,
    /// Returns the shape of a tensor, by its name in GGUF.
    pub shape: &'g dyn Fn(&str) -> Option<Vec<usize>>,
    /// Returns the values of a small tensor, by its name in GGUF.
    pub numbers: &'g dyn Fn(&str) -> Result<Option<Vec<f32>>>,
}

/// The keys of one architecture.
pub(super) struct Keys<'g> {
    pub file: &'g Described<'g>,
    pub architecture: &'g str,
    /// Keys that were read, without the architecture's name.
    read: RefCell<BTreeSet<String>>,
}

/// Returns a file's keys as a `config.json`.
///
/// # Errors
/// If the architecture is not supported, or a key is missing or has another type.
pub(super) fn config(file: &Described) -> Result<Value> {
    let found = file
        .metadata
        .get("general.architecture")
        .and_then(Value::as_str);
    let keys = Keys {
        file,
        architecture: found.unwrap_or_default(),
        read: RefCell::default(),
    };
    check_type(file, keys.architecture)?;
    let has_experts = keys.optional("expert_count").is_some();
    match model_type_of(keys.architecture, has_experts) {
        Some(model_type) => {
            let config = keys.config(model_type)?;
            keys.check_unread(model_type)?;
            Ok(config)
        }
        None => Err(Error::ConfigKey {
            path: file.path.to_path_buf(),
            key: "\"general.architecture\"".to_string(),
            reason: format!(
                "found {:?}; supported are: {}",
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
            match (key.kind, self.optional(key.gguf)) {
                (KeyKind::Needed, _) | (KeyKind::Size, Some(_)) => {
                    set(key.json, self.size(key.gguf)?.into());
                }
                (KeyKind::Number, Some(_)) => set(key.json, json!(self.number(key.gguf)?)),
                (_, None) => {}
            }
        }
        let n_rows = |name: &str| (self.file.shape)(name).and_then(|shape| shape.first().copied());
        let is_there = |name: &str| (self.file.shape)(name).is_some();
        set("vocab_size", n_rows("token_embd.weight").into());
        set("tie_word_embeddings", (!is_there("output.weight")).into());
        match (model_type, self.optional("attention.causal")) {
            (_, None) | ("bert", Some(Value::Bool(false))) => {}
            // llama.cpp lets a token attend to all later tokens, at any distance.
            ("bert" | "gemma2" | "gemma3_text", Some(found))
                if found != json!(model_type != "bert") =>
            {
                let reason = format!("is {found}, which is not supported for this architecture");
                return Err(self.error("attention.causal", reason));
            }
            (_, Some(found)) => set("is_causal", found),
        }
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
        let head_dim = self.head_dim()?;
        let turned = self.optional("rope.dimension_count");
        let turned = turned
            .map(|_| self.size("rope.dimension_count"))
            .transpose()?;
        match (model_type, turned) {
            ("phi3", _) if head_dim != per_head => {
                let reason =
                    format!("is {head_dim}, expected {per_head}, the width divided by the heads");
                return Err(self.error("attention.key_length", reason));
            }
            ("phi3", _) | (_, None) => {}
            (_, Some(turned)) if turned == head_dim => {}
            (_, Some(turned)) => {
                let reason = format!(
                    "is {turned}, but heads have {head_dim}: partial rotary embeddings are not \
                     supported for this architecture"
                );
                return Err(self.error("rope.dimension_count", reason));
            }
        }
        match model_type {
            "qwen2_moe" | "qwen3_moe" => {
                set("norm_topk_prob", (model_type == "qwen3_moe").into());
            }
            // As in llama.cpp: only the largest Gemma 2 and Gemma 3 divide the width by the heads.
            "gemma2" => {
                let scalar = if n_blocks == 46 { per_head } else { head_dim };
                set("query_pre_attn_scalar", scalar.into());
                set("layer_types", self.windows(n_blocks, 2)?);
            }
            "gemma3_text" => {
                let scalar = if n_blocks == 62 { per_head } else { head_dim };
                set("query_pre_attn_scalar", scalar.into());
                match self.optional("attention.sliding_window") {
                    None => set("layer_types", layer_types(&vec![false.into(); n_blocks])),
                    Some(_) => set("layer_types", self.windows(n_blocks, 6)?),
                }
                let cap = self.optional("final_logit_softcapping");
                set("final_logit_softcapping", cap.unwrap_or(Value::Null));
            }
            "phi3" => {
                if let Some(turned) = turned {
                    let factor = turned as f64 / head_dim as f64;
                    set("partial_rotary_factor", json!(factor));
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
        // Defaults for files written before converters stored these keys.
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

    /// Returns which layers have a sliding window: all but the last of every `period`, or as the file lists them.
    fn windows(&self, n_blocks: usize, period: usize) -> Result<Value> {
        const KEY: &str = "attention.sliding_window_pattern";
        let layers = match self.optional(KEY) {
            Some(Value::Array(layers)) if layers.len() == n_blocks => layers,
            Some(Value::Array(layers)) => {
                let reason = format!("has {} layers, but there are {n_blocks}", layers.len());
                return Err(self.error(KEY, reason));
            }
            found => {
                let period = match found {
                    Some(_) => self.size(KEY)?,
                    None => period,
                };
                let has = |i: usize| period == 0 || i % period < period - 1;
                (0..n_blocks).map(|i| has(i).into()).collect()
            }
        };
        Ok(layer_types(&layers))
    }

    /// Returns the rotation's scaling: a type and a factor, or a tensor with a factor for each frequency. For every type,
    /// cosine and sine are multiplied by `attn_factor`.
    fn rope_scaling(&self) -> Result<Value> {
        let of = self.file.numbers;
        let size = |key: &str| self.optional(key).map(|_| self.size(key)).transpose();
        let number = |key: &str| self.optional(key).map(|_| self.number(key)).transpose();
        let original = size("rope.scaling.original_context_length")?;
        let attention = number("rope.scaling.attn_factor")?;
        let kind = self.optional("rope.scaling.type");
        // The key's old name.
        let factor = match number("rope.scaling.factor")? {
            None => number("rope.scale_linear")?,
            found => found,
        };
        let factor = factor.filter(|&factor| factor != 0.0).unwrap_or(1.0);
        let kind = match kind.as_ref().map(|kind| (kind, kind.as_str())) {
            None | Some((_, Some("linear"))) => "linear",
            Some((_, Some(kind @ ("none" | "yarn" | "longrope")))) => kind,
            Some((other, _)) => {
                let reason = format!(
                    "is {other}; supported are \"none\", \"linear\", \"yarn\" and \"longrope\""
                );
                return Err(self.error("rope.scaling.type", reason));
            }
        };
        let by_tables = |short: &[f32], long: &[f32], attention: Option<f64>| {
            let mut scaling =
                json!({"rope_type": "longrope", "short_factor": short, "long_factor": long});
            if let Some(factor) = attention {
                scaling["attention_factor"] = json!(factor);
            }
            if let Some(original) = original {
                scaling["original_max_position_embeddings"] = original.into();
            }
            scaling
        };
        // One table for all lengths.
        let by_table = |factors: &[f32]| -> Result<Value> {
            let mut scaling = by_tables(factors, factors, Some(attention.unwrap_or(1.0)));
            let length = size("context_length")?.unwrap_or(1);
            scaling["original_max_position_embeddings"] = length.into();
            Ok(scaling)
        };
        if let Some(factors) = of("rope_freqs.weight")? {
            return match (kind, factor) {
                ("none", _) | (_, 1.0) => by_table(&factors),
                ("yarn", _) => {
                    let reason =
                        "is \"yarn\", but the file also has factors for each frequency".to_string();
                    Err(self.error("rope.scaling.type", reason))
                }
                _ => by_table(
                    &factors
                        .iter()
                        .map(|one| one * factor as f32)
                        .collect::<Vec<f32>>(),
                ),
            };
        }
        if let (Some(long), Some(short)) = (
            of("rope_factors_long.weight")?,
            of("rope_factors_short.weight")?,
        ) {
            return Ok(by_tables(&short, &long, attention));
        }
        // Without tables, its factor applies to all frequencies.
        let kind = if kind == "longrope" { "linear" } else { kind };
        let is_scaled = attention.is_some_and(|factor| factor != 1.0);
        if self.architecture == "gemma3" && is_scaled {
            let reason = "also applies to layers with a window, where it is not supported";
            return Err(self.error("rope.scaling.attn_factor", reason.to_string()));
        }
        if self.architecture == "phi3" && (kind == "yarn" || kind == "linear" && factor != 1.0) {
            let keys = [
                "rope.scaling.type",
                "rope.scaling.factor",
                "rope.scale_linear",
            ];
            let key = keys.into_iter().find(|key| self.optional(key).is_some());
            let reason = format!(
                "makes it {kind:?}, but for this architecture only tables of factors are supported"
            );
            return Err(self.error(key.unwrap_or("rope.scaling.type"), reason));
        }
        match kind {
            "yarn" => {
                let mut scaling = json!({"rope_type": kind, "factor": factor});
                if let Some(original) = original {
                    scaling["original_max_position_embeddings"] = original.into();
                }
                for (key, name) in [
                    ("rope.scaling.yarn_beta_fast", "beta_fast"),
                    ("rope.scaling.yarn_beta_slow", "beta_slow"),
                    ("rope.scaling.yarn_attn_factor", "attention_factor"),
                ] {
                    if let Some(found) = number(key)? {
                        scaling[name] = json!(found);
                    }
                }
                if let Some(attention) = attention.filter(|&factor| factor != 1.0) {
                    // As transformers infers it.
                    let inferred = if factor > 1.0 {
                        0.1 * factor.ln() + 1.0
                    } else {
                        1.0
                    };
                    let own = scaling["attention_factor"].as_f64().unwrap_or(inferred);
                    scaling["attention_factor"] = json!(own * attention);
                }
                Ok(scaling)
            }
            _ if is_scaled => {
                let factor = if kind == "linear" { factor } else { 1.0 };
                let n = size("rope.dimension_count")?.unwrap_or(self.head_dim()?) / 2;
                by_table(&vec![factor as f32; n])
            }
            "linear" if factor != 1.0 => Ok(json!({"rope_type": kind, "factor": factor})),
            _ => Ok(Value::Null),
        }
    }

    /// Returns the width of a head.
    pub(super) fn head_dim(&self) -> Result<usize> {
        match self.optional("attention.key_length") {
            Some(_) => self.size("attention.key_length"),
            None => self.divided_width(),
        }
    }

    /// Returns the model's width divided by the number of heads.
    pub(super) fn divided_width(&self) -> Result<usize> {
        Ok(self.size("embedding_length")? / self.size("attention.head_count")?.max(1))
    }

    /// Returns a key's value. If an array repeats one number for every layer, returns that number.
    pub(super) fn optional(&self, key: &str) -> Option<Value> {
        self.read.borrow_mut().insert(key.to_string());
        let found = self
            .file
            .metadata
            .get(&format!("{}.{key}", self.architecture))?;
        if let Value::Array(layers) = found
            && let Some((first, rest)) = layers.split_first()
            && first.is_number()
            && rest.iter().all(|layer| layer == first)
        {
            return Some(first.clone());
        }
        (!found.is_null()).then(|| found.clone())
    }

    /// Returns the architecture's keys that nothing has read.
    pub(super) fn unread(&self) -> Vec<String> {
        let prefix = format!("{}.", self.architecture);
        let all = self
            .file
            .metadata
            .keys()
            .filter_map(|key| key.strip_prefix(&prefix));
        let read = self.read.borrow();
        all.filter(|key| !read.contains(*key))
            .map(str::to_string)
            .collect()
    }

    fn number(&self, key: &str) -> Result<f64> {
        let found = self.optional(key).unwrap_or(Value::Null);
        let number = found.as_f64();
        number.ok_or_else(|| self.error(key, format!("found {found}, expected a number")))
    }

    pub(super) fn size(&self, key: &str) -> Result<usize> {
        let found = self.optional(key);
        let size = found
            .as_ref()
            .and_then(Value::as_u64)
            .and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| {
            let reason = match found {
                None => "missing, expected an integer".to_string(),
                Some(Value::Array(layers)) => format!(
                    "differs between {} layers, which is not supported for this architecture",
                    layers.len()
                ),
                Some(found) => format!("found {found}, expected an integer"),
            };
            self.error(key, reason)
        })
    }

    pub(super) fn error(&self, key: &str, reason: String) -> Error {
        Error::ConfigKey {
            path: self.file.path.to_path_buf(),
            key: format!("\"{}.{key}\"", self.architecture),
            reason,
        }
    }
}

/// Converts one boolean for each layer, whether it has a window, to `layer_types`.
fn layer_types(layers: &[Value]) -> Value {
    let kind = |is_sliding: &Value| match is_sliding {
        Value::Bool(true) => "sliding_attention",
        _ => "full_attention",
    };
    layers.iter().map(kind).collect()
}
