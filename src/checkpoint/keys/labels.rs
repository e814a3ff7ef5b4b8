//! The label names of a classifier.

use serde_json::Value;

use crate::checkpoint::Checkpoint;
use crate::config::HeadTask;
use crate::error::{Error, Result};

impl Checkpoint {
    /// Returns the names of the head's labels, in the order of its logits: `id2label` in `config.json`, or `LABEL_0` and so
    /// on if that is absent.
    ///
    /// # Errors
    /// If there is no classification head, or `id2label` lacks a label.
    pub fn labels(&self) -> Result<Vec<String>> {
        use HeadTask::{ImageClassification, SequenceClassification, TokenClassification};
        let head = self.model_config()?.head.as_ref();
        let output = head.and_then(|head| match head.task {
            SequenceClassification | TokenClassification | ImageClassification => {
                head.readout.output.as_ref()
            }
            _ => None,
        });
        let Some(output) = output else {
            let found = match head {
                Some(head) => format!("its head has the task {}", head.task),
                None => "it has no head".to_string(),
            };
            return Err(Error::InvalidConfig(format!(
                "{} has no labels: {found}; use a checkpoint whose `architectures` in config.json \
                 names a class that ends with Classification",
                self.files().path().display()
            )));
        };
        let json = self.config_json()?;
        let named = json
            .as_ref()
            .and_then(|json| Some((json, json.at("id2label").filter(|names| !names.is_null())?)));
        let Some((json, names)) = named else {
            return Ok((0..output.n_out).map(|i| format!("LABEL_{i}")).collect());
        };
        let name = |i: usize| {
            let reason = match names.get(i.to_string()) {
                None => format!(
                    "has no label \"{i}\"; the head has {}, from \"0\" on",
                    output.n_out
                ),
                Some(name) => match printed(name) {
                    Some(name) => return Ok(name),
                    None => format!("gives label \"{i}\" the name {name}, expected a string"),
                },
            };
            Err(json.error(&["id2label"], reason))
        };
        (0..output.n_out).map(name).collect()
    }
}

/// Returns a label's name as Python prints it; `None` for lists and objects. transformers takes names of any type.
fn printed(name: &Value) -> Option<String> {
    Some(match name {
        Value::String(name) => name.clone(),
        Value::Number(name) => name.to_string(),
        Value::Bool(true) => "True".to_string(),
        Value::Bool(false) => "False".to_string(),
        Value::Null => "None".to_string(),
        Value::Array(_) | Value::Object(_) => return None,
    })
}
