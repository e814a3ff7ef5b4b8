//! The number of tokens for which a model was made.

use serde_json::Value;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::config_json::ConfigJson;
use crate::error::Result;

/// The keys in `config.json`, in transformers and in code on the Hub.
const KEYS: [&str; 5] = [
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
];

/// The sections of `config.json` that describe a decoder beside an image's encoder.
const SECTIONS: [&str; 3] = ["text_config", "llm_config", "language_config"];

impl Checkpoint {
    /// Returns the number of tokens for which the model was made: `max_position_embeddings` in `config.json`, or a key that
    /// means the same, or `context_length` in a GGUF file. Returns `None` if the files do not say it, and for an encoder with a decoder.
    ///
    /// A model with a table of positions cannot read more tokens; one with rotary embeddings or ALiBi can.
    ///
    /// # Errors
    /// If `config.json` cannot be read.
    pub fn context_length(&self) -> Result<Option<usize>> {
        if let Some(gguf) = self.files.gguf() {
            let architecture = gguf.metadata.get("general.architecture");
            let architecture = architecture.and_then(Value::as_str).unwrap_or_default();
            return Ok(size(
                gguf.metadata.get(&format!("{architecture}.context_length")),
            ));
        }
        let Some(json) = self.config_json()? else {
            return Ok(None);
        };
        if json
            .value_at("is_encoder_decoder")
            .is_some_and(|said| said == true)
        {
            return Ok(None);
        }
        let of = |json: &ConfigJson, section: &str| {
            KEYS.iter()
                .find_map(|key| size(json.value_at(&format!("{section}{key}"))))
        };
        let sections = SECTIONS.iter().map(|section| format!("{section}."));
        let mut sections = std::iter::once(String::new()).chain(sections);
        Ok(sections.find_map(|section| of(&json, &section)))
    }
}

/// Returns a number of tokens. The model's own reader refuses other values.
fn size(value: Option<&Value>) -> Option<usize> {
    let value = value?.as_u64()?;
    usize::try_from(value).ok().filter(|&size| size > 0)
}
