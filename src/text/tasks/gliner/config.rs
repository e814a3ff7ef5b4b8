//! The settings in `gliner_config.json`, with gliner's defaults.
//!
//! <https://github.com/urchade/GLiNER/blob/v0.2.29/gliner/config.py>

use candle_blocks_tokenizers::LabelPrompt;
use serde_json::Value;

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::scheme::{Family, builtin::known};
use crate::error::{Error, Result};

/// The file's name.
pub(super) const FILE: &str = "gliner_config.json";

/// A model's settings.
#[derive(Clone, Debug)]
pub(super) struct GlinerConfig {
    json: ConfigJson,
    pub hidden_size: usize,
    /// How many words a span has at most.
    pub max_width: usize,
    /// How many words a text has after truncation.
    pub max_len: usize,
    pub n_lstm_layers: usize,
    /// Words get scores, and not spans.
    pub is_token_level: bool,
    pub prompt: LabelPrompt,
}

impl GlinerConfig {
    /// # Errors
    /// If a key is malformed, or its value is not supported.
    pub fn new(json: ConfigJson) -> Result<Self> {
        // Keys whose other values mean a model that is not supported, with the supported values.
        let supported = include_str!("supported.txt").lines();
        for (key, supported) in supported.filter_map(|line| line.split_once(' ')) {
            let found = json.at(key).unwrap_or(&Value::Null).to_string();
            if found != "null" && supported.split(", ").all(|one| one != found) {
                let cure = "use another GLiNER model, such as gliner_small-v2.1";
                let reason = format!("found {found}, expected {supported}; {cure}");
                return Err(json.error(&[key], reason));
            }
        }
        let token = |key: &str, default: &str| -> Result<String> {
            Ok(json.text(&[key])?.unwrap_or_else(|| default.into()))
        };
        let index = |key: &str| match json.at(key).and_then(Value::as_i64) {
            Some(-1) => Ok(None),
            _ => json.optional_size(&[key]),
        };
        Ok(Self {
            hidden_size: json.width_or(&["hidden_size"], 512)?,
            max_width: json.width_or(&["max_width"], 12)?,
            max_len: json.width_or(&["max_len"], 384)?,
            n_lstm_layers: json.size_or(&["num_rnn_layers"], 1)?,
            is_token_level: token("span_mode", "")? == "token_level",
            prompt: LabelPrompt {
                label_marker: token("ent_token", "<<ENT>>")?,
                end_marker: token("sep_token", "<<SEP>>")?,
                reads_marker: json.flag(&["embed_ent_token"], true)?,
                ids: index("class_token_index")?.zip(index("vocab_size")?),
            },
            json,
        })
    }

    /// Returns the encoder's table and its configuration: the section `encoder_config`, or else the `config.json` beside the file.
    /// If gliner adds tokens to the tokenizer, `n_tokens` counts all.
    ///
    /// # Errors
    /// If there is neither, or no family has its `model_type`.
    pub fn encoder(&self, mut n_tokens: Option<usize>) -> Result<(Family, ConfigJson)> {
        let mut json = match self.json.section(&["encoder_config"])? {
            Some(section) => section.with_default("model_type", "deberta-v2"),
            None => {
                n_tokens = n_tokens.or(self.prompt.ids.map(|(_, n)| n));
                let beside = self.json.path().with_file_name("config.json");
                let json = ConfigJson::open_named(&beside)?;
                json.ok_or_else(|| self.missing("encoder_config", "config.json"))?
            }
        };
        if let Some(n) = n_tokens {
            json = json.with("vocab_size", n);
        }
        const KEY: &str = "model_type";
        let model_type = json.text(&[KEY])?.unwrap_or_default();
        let family = known(&model_type, None);
        let family = family.map_err(|of| json.error(&[KEY], of.reason(&model_type)))?;
        let prefix = "token_rep_layer.bert_layer.model.";
        Ok((family.prefixes(&[prefix]), json))
    }

    /// Returns the error for a missing file that the encoder needs.
    pub fn missing(&self, key: &str, file: &str) -> Error {
        let encoder = self.json.value_at("model_name").unwrap_or(&Value::Null);
        let reason = format!(
            "there is no {file}; put the config.json and the tokenizer files of the encoder, {encoder}, beside {FILE}"
        );
        self.json.error(&[key], reason)
    }

    /// Returns a note on keys that nothing reads, if there are any; `of_encoder` has those in the encoder's configuration.
    pub fn note(&self, of_encoder: &[String]) -> Option<String> {
        let harmless: Vec<&str> = include_str!("harmless.txt").lines().collect();
        let mut unread = self.json.unread(&harmless);
        unread.extend_from_slice(of_encoder);
        let unread = unread.join(", ");
        let note = format!("{FILE} or config.json has keys that are not read: {unread}");
        (!unread.is_empty()).then_some(note)
    }
}
