//! Rerankers: the classification head in a GGUF file, whose tensors begin with `cls`.

use serde_json::{Map, Value, json};

use crate::checkpoint::gguf::config::Keys;
use crate::error::Result;

impl Keys<'_> {
    /// Returns the labels' names, or a name for each row of a tensor.
    pub(crate) fn label_names(&self, tensor: &str) -> Value {
        let named = self.optional("classifier.output_labels");
        let named = named.as_ref().and_then(Value::as_array);
        let names: Vec<Value> = match named {
            Some(names) if !names.is_empty() => names.clone(),
            _ => { 0..self.rows(tensor).unwrap_or(1) }
                .map(|i| format!("LABEL_{i}").into())
                .collect(),
        };
        let pairs = names.into_iter().enumerate();
        Value::Object(
            pairs
                .map(|(i, name)| (i.to_string(), name))
                .collect::<Map<_, _>>(),
        )
    }

    /// Refuses a head without its first layer: the converter leaves BERT's pooler out, and llama.cpp's scores are not the model's.
    pub(crate) fn check_classifier(&self) -> Result<Value> {
        if self.exists("cls.weight") {
            return Ok(Value::Null);
        }
        let found = self.optional("pooling_type").unwrap_or(Value::Null);
        let reason = format!(
            "is {found}, and the file has a cls.output.weight without cls.weight: the conversion left out the pooler \
             that the scores need; use the model's own safetensors"
        );
        Err(self.error("pooling_type", reason))
    }

    /// Returns whether the head reads the first token or the mean, which is the default.
    pub(crate) fn classifier_pooling(&self) -> Result<Value> {
        const KEY: &str = "classifier.pooling_type";
        match self.optional(KEY) {
            None => Ok(json!("mean")),
            Some(found) => match found.as_i64() {
                Some(1 | -1) => Ok(json!("mean")),
                Some(2) => Ok(json!("cls")),
                _ => Err(self.error(KEY, format!("is {found}, expected 1 (mean) or 2 (cls)"))),
            },
        }
    }
}
