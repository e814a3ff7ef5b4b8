//! Keys in a GGUF file that nothing else reads: those that change nothing, and refuses others.

use serde_json::{Value, json};

use super::architecture::{Architecture, Condition, all};
use super::config::Keys;
use crate::checkpoint::config_json::abbreviated;
use crate::checkpoint::scheme::matches;
use crate::error::Result;

/// When a key changes nothing.
enum Neutral {
    /// Always: it is about training or the conversion, or read elsewhere.
    Always,
    /// With these values.
    At(&'static [f64]),
    /// With the model's width divided by the heads.
    DividedWidth,
    /// With a head's width.
    HeadDim,
    /// With one over a head's root width, or 0 for that.
    ScaleOfHead,
    /// With the same number as another key.
    As(&'static str),
}

/// Keys without their architecture. `llama_model_base::load_hparams` in llama.cpp reads them for every architecture, or for
/// those that are not read here.
const KNOWN: [(&str, Neutral); 33] = [
    ("vocab_size", Neutral::Always),
    ("context_length", Neutral::Always),
    ("pooling_type", Neutral::Always),
    ("tensor_data_layout", Neutral::Always),
    ("rope.scaling.finetuned", Neutral::Always),
    ("rope.scaling.original_context_length", Neutral::Always),
    ("classifier.output_labels", Neutral::Always),
    ("embedding_length_out", Neutral::As("embedding_length")),
    ("attention.key_length", Neutral::DividedWidth),
    ("attention.value_length", Neutral::HeadDim),
    ("attention.key_length_swa", Neutral::HeadDim),
    ("attention.value_length_swa", Neutral::HeadDim),
    (
        "attention.head_count_kv",
        Neutral::As("attention.head_count"),
    ),
    ("rope.dimension_count", Neutral::HeadDim),
    ("rope.dimension_count_swa", Neutral::HeadDim),
    ("rope.freq_base_swa", Neutral::As("rope.freq_base")),
    ("rope.scaling.alpha", Neutral::At(&[0.0])),
    ("rope.scaling.yarn_ext_factor", Neutral::At(&[1.0, -1.0])),
    ("rope.scaling.yarn_log_multiplier", Neutral::At(&[0.0])),
    ("attention.scale", Neutral::ScaleOfHead),
    ("attention.sliding_window", Neutral::At(&[0.0])),
    ("attention.clamp_kqv", Neutral::At(&[0.0])),
    ("attention.max_alibi_bias", Neutral::At(&[0.0])),
    ("logit_scale", Neutral::At(&[0.0, 1.0])),
    ("residual_scale", Neutral::At(&[0.0, 1.0])),
    ("embedding_scale", Neutral::At(&[0.0, 1.0])),
    ("attn_logit_softcapping", Neutral::At(&[0.0])),
    ("final_logit_softcapping", Neutral::At(&[0.0])),
    ("expert_weights_scale", Neutral::At(&[0.0, 1.0])),
    ("expert_count", Neutral::At(&[0.0])),
    ("expert_used_count", Neutral::At(&[0.0])),
    ("expert_group_count", Neutral::At(&[0.0, 1.0])),
    ("nextn_predict_layers", Neutral::At(&[0.0])),
];

impl Keys<'_> {
    /// Refuses a key that nothing has read, unless it changes nothing, and a file without a key that it needs.
    ///
    /// # Errors
    /// [`Error::ConfigKey`](crate::error::Error::ConfigKey) for the first such key.
    pub(super) fn check_unread(&self, entry: &Architecture) -> Result<()> {
        for key in &entry.required {
            if self.peek(key).is_none() {
                let neutral = entry.neutral.iter().rev();
                let mut values = neutral
                    .filter(|(of, _)| of == key)
                    .map(|(_, values)| values);
                let expected = json!(values.next().and_then(|values| values.first()));
                let reason = format!(
                    "missing, expected {expected}: without the key llama.cpp has another value, which is \
                     not supported for this architecture"
                );
                return Err(self.error(key, reason));
            }
        }
        for key in self.unread() {
            let found = self.optional(&key);
            let Some(value) = found.filter(|value| !self.changes_nothing(entry, &key, value))
            else {
                continue;
            };
            // Another entry for the architecture may read it, in files with a key that this one lacks.
            let mut others = all()
                .filter(|other| other.name == entry.name && other.conditions != entry.conditions);
            let is_read = others.any(|other| {
                let keys = Keys::of(self.file);
                let _ = keys.config(other);
                keys.read().contains(&key)
            });
            let mut conditions = entry.conditions.iter();
            let lacked = conditions
                .find(|(kind, _)| is_read && *kind == Condition::NoKey)
                .map_or(String::new(), |(_, key)| {
                    format!(" without \"{}.{key}\"", entry.name)
                });
            let reason = format!(
                "is {}, which is not supported for this architecture{lacked}; if it has no effect, \
                 describe the model in a config.json and use that \
                 (`CheckpointOptions::config`)",
                abbreviated(value.to_string())
            );
            return Err(self.error(&key, reason));
        }
        Ok(())
    }

    fn changes_nothing(&self, entry: &Architecture, key: &str, value: &Value) -> bool {
        let number = match value {
            Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
            other => other.as_f64(),
        };
        let is =
            |wanted: Option<usize>| wanted.is_some() && value.as_u64() == wanted.map(|n| n as u64);
        let is_meant = |pattern: &str| matches(pattern, key);
        // The last line for a key counts.
        let mut neutral = entry.neutral.iter().rev();
        if let Some((_, values)) = neutral.find(|(pattern, _)| is_meant(pattern)) {
            return values.is_empty() || values.contains(value);
        }
        let Some((_, neutral)) = KNOWN.iter().find(|(known, _)| *known == key) else {
            return false;
        };
        match neutral {
            Neutral::Always => true,
            Neutral::At(values) => number.is_some_and(|number| values.contains(&number)),
            Neutral::DividedWidth => is(self.divided_width().ok()),
            Neutral::HeadDim => is(self.head_dim().ok()),
            Neutral::ScaleOfHead => {
                let scale = self
                    .head_dim()
                    .map_or(f64::NAN, |width| 1.0 / (width as f64).sqrt());
                number.is_some_and(|number| number == 0.0 || (number - scale).abs() < 1e-6 * scale)
            }
            Neutral::As(other) => self.optional(other).as_ref() == Some(value),
        }
    }
}
