//! From a configuration to the keys in a GGUF file, and the proof that they say all.

use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::path::Path;

use serde_json::{Value, json};

use super::architecture::{Architecture, Kind, listed, written};
use super::config::Described;
use super::own_config::config;
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::gguf::config::keys::{file_type, of_stack, rotary};
use crate::checkpoint::scheme::Family;
use crate::config::{BlockConfig, RotaryConfig, RotaryScaling, StackConfig};
use crate::error::{Error, Result};
use candle_blocks_files::gguf::write::TensorEntry;
use candle_blocks_kernels::storage::BlockKind;

/// A file's keys, and small tensors that say the rest.
pub(super) struct Description {
    pub keys: BTreeMap<String, Value>,
    /// The rotation's factors, by their names there.
    pub factors: Vec<(&'static str, Vec<f32>)>,
}

/// Returns the entry by which the model is written.
///
/// # Errors
/// If there is none.
pub(super) fn entry(json: &ConfigJson) -> Result<&'static Architecture> {
    let model_type = json.text(&["model_type"])?.unwrap_or_default();
    written(&model_type).ok_or_else(|| {
        json.error(
            &["model_type"],
            format!(
                "found {model_type:?}, which cannot be saved as GGUF; these can: {}",
                listed(|entry| entry.is_written.then_some(entry.model_type))
            ),
        )
    })
}

impl Description {
    /// Describes a configuration. `n_rows` gives a tensor's first dimension, by its name in GGUF.
    ///
    /// # Errors
    /// If a key holds what is no number.
    pub fn new(
        json: &ConfigJson,
        entry: &Architecture,
        stack: &StackConfig,
        n_rows: impl Fn(&str) -> Option<usize>,
        kind: BlockKind,
    ) -> Result<Self> {
        let (architecture, model_type) = (entry.name, entry.model_type);
        let mut described = Self {
            keys: BTreeMap::new(),
            factors: vec![],
        };
        let mut general = |key: &str, value: Value| described.keys.insert(key.to_string(), value);
        general("general.architecture", architecture.into());
        general("general.file_type", file_type(kind).into());
        general("general.quantization_version", 2.into());
        // Token ids alone, until somebody adds the words.
        general("tokenizer.ggml.model", "none".into());
        if let Some(n_types) = n_rows("token_types.weight") {
            general("tokenizer.ggml.token_type_count", n_types.into());
        }
        let mut set = |key: &str, value: Value| {
            if !value.is_null() {
                let key = format!("{architecture}.{key}");
                described.keys.insert(key, value);
            }
        };
        set("vocab_size", n_rows("token_embd.weight").into());
        if model_type == "bert" {
            set("attention.causal", false.into());
        }
        for (name, key) in entry.keys.iter() {
            let value = json.at(name).filter(|value| !value.is_null());
            let is_name = |value: &Value| {
                value
                    .as_str()
                    .is_some_and(|text| text.starts_with(['@', '!']))
            };
            let value = match (value.cloned(), of_stack(name, stack), &key.default) {
                (Some(value), ..) => value,
                (None, Value::Null, Some(default)) if !is_name(default) => default.clone(),
                (None, value, _) => value,
            };
            match key.kind {
                Kind::Needed | Kind::Size | Kind::Switch if value.is_null() || is_size(&value) => {
                    set(key.gguf, value);
                }
                Kind::Number | Kind::Factor | Kind::Cap | Kind::Positive
                    if value.is_null() || value.is_number() =>
                {
                    set(key.gguf, value.as_f64().map_or(Value::Null, Value::from));
                }
                Kind::Flag | Kind::Any => set(key.gguf, value),
                _ => {
                    let reason = format!("found {value}, expected a number");
                    return Err(json.error(&[name], reason));
                }
            }
            if key.gguf == "attention.key_length" {
                let head_dim = of_stack(name, stack);
                set("attention.value_length", head_dim);
            }
        }
        if model_type == "gemma3_text"
            && let Some(pattern) = pattern(stack)
        {
            set("attention.sliding_window_pattern", pattern);
        }
        if let Some(rotary) = rotary(stack, false) {
            set("rope.dimension_count", rotary.dim.into());
            described.factors = rotary_scaling(rotary, &mut set);
        }
        Ok(described)
    }

    /// Reads the keys back, as whoever opens the file will, and compares the configuration with the one that it was made from.
    ///
    /// # Errors
    /// If something was lost, which is named.
    pub fn check(&self, path: &Path, entries: &[TensorEntry], stack: &StackConfig) -> Result<()> {
        let entry = |name: &str| entries.iter().find(|entry| entry.name == name);
        let json = config(&Described {
            path,
            metadata: &self.keys,
            shape: &|name| Some(entry(name)?.shape.clone()),
            numbers: &|name| {
                let found = self.factors.iter().find(|(known, _)| *known == name);
                Ok(found.map(|(_, factors)| factors.clone()))
            },
        })?;
        let json = ConfigJson::given(path, json);
        let model_type = json.text(&["model_type"])?.unwrap_or_default();
        let read = Family::known(&model_type, None)?.stack_config(&json)?;
        let [written, read] = [stack, &read].map(|stack| {
            serde_json::to_value(stack).map_err(|error| Error::InvalidConfig(error.to_string()))
        });
        match difference(&written?, &read?, "") {
            None => Ok(()),
            Some(lost) => Err(Error::InvalidConfig(format!(
                "GGUF files of the architecture {} cannot represent this checkpoint's configuration: {lost}",
                self.keys["general.architecture"]
            ))),
        }
    }
}

fn is_size(value: &Value) -> bool {
    value
        .as_u64()
        .is_some_and(|size| u32::try_from(size).is_ok())
}

/// Every how many layers one sees all positions, if it is not six as where nothing is said; else which layers do not.
fn pattern(stack: &StackConfig) -> Option<Value> {
    let blocks = stack.layers.iter().map(|&i| &stack.blocks[i]);
    let is_local = |block: &BlockConfig| block.attention().is_ok_and(|a| a.window.is_some());
    let is_local: Vec<bool> = blocks.map(is_local).collect();
    let period = is_local
        .iter()
        .position(|local| !local)
        .map_or(6, |i| i + 1);
    let mut layers = is_local.iter().enumerate();
    match layers.all(|(i, local)| *local == ((i + 1) % period != 0)) {
        true if period == 6 => None,
        true => Some(period.into()),
        false => Some(is_local.into()),
    }
}

/// Sets the keys for a rotation's scaling; returns factors for its frequencies. A scaling without keys sets nothing: the check finds
/// it.
fn rotary_scaling(
    rotary: &RotaryConfig,
    set: &mut impl FnMut(&str, Value),
) -> Vec<(&'static str, Vec<f32>)> {
    let narrow = |factors: &[f64]| factors.iter().map(|&factor| factor as f32).collect();
    match &rotary.scaling {
        RotaryScaling::Linear { factor } => {
            set("rope.scaling.type", "linear".into());
            set("rope.scaling.factor", json!(factor));
        }
        RotaryScaling::Yarn {
            factor,
            original_positions,
            ..
        } => {
            set("rope.scaling.type", "yarn".into());
            set("rope.scaling.factor", json!(factor));
            set(
                "rope.scaling.original_context_length",
                (*original_positions).into(),
            );
        }
        RotaryScaling::LongRope {
            short_factor,
            long_factor,
            attention_factor,
            original_positions,
            ..
        } => {
            set("rope.scaling.attn_factor", json!(attention_factor));
            set(
                "rope.scaling.original_context_length",
                (*original_positions).into(),
            );
            return vec![
                ("rope_factors_long.weight", narrow(long_factor)),
                ("rope_factors_short.weight", narrow(short_factor)),
            ];
        }
        &RotaryScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_positions,
        } => {
            // As transformers' `_compute_llama3_parameters`, but what divides a frequency.
            let divisor = |i: usize| {
                let frequency = rotary.theta.powf(-2.0 * i as f64 / rotary.dim as f64);
                let rotations = original_positions as f64 * frequency / (2.0 * PI);
                let kept = (rotations - low_freq_factor) / (high_freq_factor - low_freq_factor);
                let kept = kept.clamp(0.0, 1.0);
                (1.0 / ((1.0 - kept) / factor + kept)) as f32
            };
            let all = (0..rotary.dim / 2).map(divisor).collect();
            return vec![("rope_freqs.weight", all)];
        }
        _ => {}
    }
    vec![]
}

/// The first setting in which two configurations differ by more than f32 does. Dropout is for training alone; factors of
/// Llama 3's frequencies were computed.
fn difference(written: &Value, read: &Value, place: &str) -> Option<String> {
    let is_left_out = |key: &str| key.contains("drop");
    match (written, read) {
        (Value::Object(one), Value::Object(other)) => {
            if one.contains_key("llama3") {
                return None;
            }
            let keys = one.keys().chain(other.keys());
            let place = |key: &str| match place {
                "" => key.to_string(),
                _ => format!("{place}.{key}"),
            };
            keys.filter(|key| !is_left_out(key)).find_map(|key| {
                let of = |object: &serde_json::Map<String, Value>| {
                    object.get(key).cloned().unwrap_or(Value::Null)
                };
                difference(&of(one), &of(other), &place(key))
            })
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let pairs = one.iter().zip(other).enumerate();
            { pairs }.find_map(|(i, (a, b))| difference(a, b, &format!("{place}[{i}]")))
        }
        _ if written == read => None,
        _ => match (written.as_f64(), read.as_f64()) {
            (Some(a), Some(b)) if (a - b).abs() <= f64::from(f32::EPSILON) * a.abs() => None,
            _ => Some(format!("{place} is {written}, and would be read as {read}")),
        },
    }
}
