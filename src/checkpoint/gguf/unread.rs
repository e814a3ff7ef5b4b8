//! GGUF keys that nothing else reads: some are known to change nothing, all others are refused.

use serde_json::{Value, json};

use super::config::{Described, Keys};
use crate::checkpoint::config_json::abbreviated;
use crate::error::{Error, Result};

/// The condition under which a key changes nothing.
enum Neutral {
    /// Always: it describes training or the conversion, or is read elsewhere.
    Always,
    /// If it has one of these values.
    At(&'static [f64]),
    /// If it equals the model's width divided by the heads.
    DividedWidth,
    /// If it equals the head width.
    HeadDim,
    /// If it equals the inverse square root of the head width, or 0 as the default.
    ScaleOfHead,
    /// If it equals another key.
    As(&'static str),
}

/// Keys without the architecture's name that llama.cpp's `llama_model_base::load_hparams` reads for every architecture, or
/// for architectures that are not supported here.
const KNOWN: [(&str, Neutral); 30] = [
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
    ("expert_group_count", Neutral::At(&[0.0, 1.0])),
    ("nextn_predict_layers", Neutral::At(&[0.0])),
];

/// Returns whether a key changes nothing for this type of model.
fn of_type(model_type: &str, key: &str, value: &Value) -> bool {
    match key {
        "expert_weights_norm" => value.as_bool() == Some(model_type != "qwen2_moe"),
        // 1 means softmax, 0 is the default.
        "expert_gating_func" | "expert_group_used_count" => matches!(value.as_u64(), Some(0 | 1)),
        // These models have no rotary embeddings.
        _ => key.starts_with("rope.") && ["gpt2", "bert"].contains(&model_type),
    }
}

impl Keys<'_> {
    /// Refuses a key that nothing has read, unless it changes nothing.
    ///
    /// # Errors
    /// [`Error::ConfigKey`] for the first such key.
    pub(super) fn check_unread(&self, model_type: &str) -> Result<()> {
        for key in self.unread() {
            let found = self.optional(&key);
            let Some(value) = found.filter(|value| !self.changes_nothing(model_type, &key, value))
            else {
                continue;
            };
            let reason = format!(
                "is {}, which is not supported for this architecture; if it has no effect, \
                 describe the model in a config.json and use that \
                 (`CheckpointOptions::config`, or `--config FILE`)",
                abbreviated(value.to_string())
            );
            return Err(self.error(&key, reason));
        }
        Ok(())
    }

    fn changes_nothing(&self, model_type: &str, key: &str, value: &Value) -> bool {
        let number = match value {
            Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
            other => other.as_f64(),
        };
        let is =
            |wanted: Option<usize>| wanted.is_some() && value.as_u64() == wanted.map(|n| n as u64);
        let Some((_, neutral)) = KNOWN.iter().find(|(known, _)| *known == key) else {
            return of_type(model_type, key, value);
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

/// Refuses a file that is not a model, naming its type.
pub(super) fn check_type(file: &Described, architecture: &str) -> Result<()> {
    let text = |key: &str| file.metadata.get(key).and_then(Value::as_str);
    let kind = text("general.type").unwrap_or("model");
    let has_adapter = file.metadata.keys().any(|key| key.starts_with("adapter."));
    let what = match (kind, architecture) {
        ("adapter", _) => "an adapter, which changes a model",
        _ if has_adapter => "an adapter, which changes a model",
        ("mmproj", _) | (_, "clip") => "the image or audio encoder for a model",
        ("vocab", _) => "words alone",
        ("imatrix", _) | (_, "imatrix") => "the importance of weights, for quantization",
        _ => return Ok(()),
    };
    Err(Error::NotGguf {
        path: file.path.to_path_buf(),
        reason: format!(
            "it is {what}, not a model (\"general.type\" is {}); open the model's own file",
            json!(kind)
        ),
    })
}
