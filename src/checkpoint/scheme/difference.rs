//! Differences between a family and the one that it starts from: the keys of its `config.json`, and settings of its blocks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::keys::attribute_names::spelled_as_own;
use crate::config::StackConfig;
use crate::error::{Error, Result, listed, nearest};

/// The defaults of the class that describes a family's blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::checkpoint) struct ClassDefaults {
    /// The values by key. A section has an object.
    pub values: Map<String, Value>,
    /// A file may lack required sizes too: its blocks are described in a section, where transformers leaves out each default.
    pub with_sizes: bool,
}

/// Differences between a family's `config.json` and the keys that its reader requests.
/// Set them in [`Family::keys`](crate::checkpoint::scheme::Family::keys).
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
#[non_exhaustive]
pub struct ConfigKeys {
    /// The object that describes the blocks, such as `text_config`; `None` for the whole file.
    pub section: Option<String>,
    /// A file may omit that object and have its keys at the top level.
    pub or_whole: bool,
    /// Keys outside that object that override it if they are present and not null: transformers' class for the whole model
    /// passes their values on.
    pub handed_on: Vec<String>,
    /// A key's name in the file, by the reader's name. Dots lead into objects: `attn_config.n_heads`.
    pub renamed: BTreeMap<String, String>,
    /// Keys that have these values in the object, whatever it says: transformers' class for the whole model sets them. `{"from": PATH}`
    /// is the value at a path from outside the object, with `default` where a file has none.
    pub(crate) fixed: Value,
    /// The configuration that ties the output layer.
    pub(crate) ties: Ties,
    /// Default values, by the reader's names, for keys that a file may omit, where they differ from those of the class.
    pub defaults: Map<String, Value>,
    /// The defaults of transformers' configuration class, by the file's names.
    pub(in crate::checkpoint) class: ClassDefaults,
    /// The model type of another class with the same defaults, for a type that transformers lacks.
    pub(crate) class_type: Option<String>,
    /// Required sizes that a file may lack: the class has them.
    pub(crate) class_sizes: Vec<String>,
}

/// The configuration whose `tie_word_embeddings` ties the output layer to the token embeddings, if both have this key.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Ties {
    /// The key of the whole model.
    #[default]
    Outside,
    /// The key of the object, because the whole model's class ties nothing.
    Inside,
    /// Either key, because both classes tie.
    Either,
}

impl ConfigKeys {
    /// Returns a `config.json` as the reader sees it.
    ///
    /// # Errors
    /// If it lacks the section.
    pub(crate) fn seen(&self, json: &ConfigJson) -> Result<ConfigJson> {
        let whole = spelled_as_own(json);
        let inside = match &self.section {
            None => whole,
            Some(section) => match whole.value_at(section).filter(|value| value.is_object()) {
                Some(found) => spelled_as_own(&whole.inside(section, self.inside(&whole, found)?)),
                None if self.or_whole => whole,
                None => return Err(json.error(&[section], "missing, expected an object")),
            },
        };
        let mut value = inside.value().clone();
        let mut renamed = BTreeMap::new();
        let mut class = self.class.values.clone();
        if let Some(object) = value.as_object_mut() {
            for (key, path) in &self.renamed {
                match inside.value_at(path) {
                    Some(value) => object.insert(key.clone(), value.clone()),
                    None => object.remove(key),
                };
                match self.class.values.get(path) {
                    Some(value) => class.insert(key.clone(), value.clone()),
                    None => class.remove(key),
                };
                renamed.insert(key.clone(), path.clone());
            }
            let class_default = |key: &String| Some((key.clone(), class.get(key)?.clone()));
            let sizes = self.class_sizes.iter().filter_map(class_default);
            for (key, value) in self.defaults.clone().into_iter().chain(sizes) {
                object.entry(key).or_insert(value);
            }
        }
        let seen = inside.with_value(value, renamed);
        Ok(seen.with_class(class, self.class.with_sizes))
    }

    /// Returns a section with the file's keys for the whole model.
    fn inside(&self, json: &ConfigJson, section: &Value) -> Result<Value> {
        let mut section = section.clone();
        if let Some(object) = section.as_object_mut() {
            let ties_inside = match self.ties {
                Ties::Outside => false,
                Ties::Inside => true,
                Ties::Either => !object.contains_key("tie_word_embeddings"),
            };
            for key in OF_THE_WHOLE {
                let outside = json.at(key);
                if ties_inside && key == "tie_word_embeddings" {
                    continue;
                }
                // Older files tie their weights inside.
                if object.get(key) != Some(&Value::Bool(true)) {
                    match outside {
                        Some(value) => object.insert(key.to_string(), value.clone()),
                        None => object.remove(key),
                    };
                }
            }
            for key in &self.handed_on {
                if let Some(value) = json.at(key).filter(|value| !value.is_null()) {
                    object.insert(key.clone(), value.clone());
                }
            }
            // With a record of its own: the table of the other stack reads that one's keys.
            let whole = ConfigJson::given(json.path(), json.value().clone());
            if let Value::Object(fixed) = resolved(&self.fixed, &whole)? {
                object.extend(fixed);
            }
        }
        Ok(section)
    }
}

/// Keys of the whole model that are outside the section with its blocks.
const OF_THE_WHOLE: [&str; 4] = [
    "architectures",
    "tie_word_embeddings",
    "id2label",
    "num_labels",
];

/// A change to some blocks after `config.json` was read.
///
/// ```
/// use candle_blocks::checkpoint::scheme::BlockChange;
/// use serde_json::json;
/// // A sliding window in the layers of which `layer_types` says so.
/// let windows = BlockChange::new(json!({"attention": {"window": {"from": "sliding_window"}}}))
///     .at("layer_types", "sliding_attention");
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
#[non_exhaustive]
pub struct BlockChange {
    /// Selects the blocks that it changes: each key in `config.json` must have the given value, or must be a list with that
    /// value at the block's index. Without keys, selects all blocks.
    #[serde(rename = "where", default)]
    pub at: BTreeMap<String, Value>,
    /// The changed settings, in the form in which `candle-blocks inspect --json` prints a block. Instead of a value,
    /// `{"from": "key"}` means a key's value in `config.json`, and `{"from": "key", "default": 1.0}` a key that a file may
    /// omit.
    pub set: Value,
}

impl BlockChange {
    /// Changes these settings in every block.
    pub fn new(set: Value) -> Self {
        Self {
            at: BTreeMap::new(),
            set,
        }
    }

    /// Restricts the change to blocks for which `key` in `config.json` has this value.
    pub fn at(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.at.insert(key.to_string(), value.into());
        self
    }

    pub(super) fn apply(&self, json: &ConfigJson, stack: &mut StackConfig) -> Result<()> {
        let n_blocks = stack.blocks.len();
        for (i, block) in stack.blocks.iter_mut().enumerate() {
            if self.changes(json, i, n_blocks)? {
                *block = changed(block, &self.set, json)?;
            }
        }
        Ok(())
    }

    fn changes(&self, json: &ConfigJson, i: usize, n_blocks: usize) -> Result<bool> {
        for (key, wanted) in &self.at {
            let found = match json.at(key) {
                None | Some(Value::Null) => {
                    let reason = "missing, expected a value or a list with one for each layer; if \
                     it may be absent, set a default in the family";
                    return Err(json.error(&[key], reason));
                }
                Some(Value::Array(list)) => list.get(i).ok_or_else(|| {
                    let found = list.len();
                    json.error(&[key], format!("lists {found} layers, expected {n_blocks}"))
                })?,
                Some(all) => all,
            };
            if found != wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns a configuration after `change`.
pub(super) fn changed<T: Serialize + DeserializeOwned>(
    config: &T,
    change: &Value,
    json: &ConfigJson,
) -> Result<T> {
    let failed = |e: serde_json::Error| Error::InvalidConfig(format!("what the family sets: {e}"));
    let mut value = serde_json::to_value(config).map_err(failed)?;
    merge(&mut value, &resolved(change, json)?, "")?;
    serde_json::from_value(value).map_err(failed)
}

/// Replaces references to keys by their values in `config.json`.
fn resolved(value: &Value, json: &ConfigJson) -> Result<Value> {
    let Value::Object(object) = value else {
        return Ok(value.clone());
    };
    if let Some(Value::String(key)) = object.get("from") {
        let found = json.at(key).or(object.get("default"));
        return found
            .cloned()
            .ok_or_else(|| json.error(&[key], "missing, expected a value that the family sets"));
    }
    let entry = |(key, value): (&String, &Value)| Ok((key.clone(), resolved(value, json)?));
    object
        .iter()
        .map(entry)
        .collect::<Result<_>>()
        .map(Value::Object)
}

/// Replaces in `into` the settings that `change` names. An unknown setting is an error, because it would be ignored later.
fn merge(into: &mut Value, change: &Value, place: &str) -> Result<()> {
    let (Value::Object(settings), Value::Object(changes)) = (&mut *into, change) else {
        *into = change.clone();
        return Ok(());
    };
    // The single key in an enum's object is the variant, which another one replaces.
    let is_variant = settings.len() == 1 && changes.len() == 1;
    if is_variant && settings.keys().ne(changes.keys()) {
        *into = change.clone();
        return Ok(());
    }
    for (key, change) in changes {
        let known: Vec<String> = settings.keys().cloned().collect();
        let Some(setting) = settings.get_mut(key) else {
            let near = nearest(key, known.iter().map(String::as_str), 0.5, 3);
            let near = listed("nearest:", if near.is_empty() { &known } else { &near });
            let reason = format!("the family sets {place}{key}, which is not a setting{near}");
            return Err(Error::InvalidConfig(reason));
        };
        merge(setting, change, &format!("{place}{key}."))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::path::Path;

    use super::*;

    #[test]
    fn copies_and_sections_share_the_record_of_keys_that_were_read() -> Result<()> {
        let contents = json!({
            "architectures": ["A"],
            "text": {"n_wide": 3, "num_labels": 2, "own": 5, "depth": {"a": 1, "b": 2}, "forgotten": 4},
            "dropout": 0.1, "unknown": {"x": 1}, "num_labels": 3, "own": 4
        });
        let file = ConfigJson::given(Path::new("config.json"), contents);
        let keys = ConfigKeys {
            handed_on: vec!["own".into()],
            section: Some("text".into()),
            renamed: [("width".to_string(), "n_wide".to_string())].into(),
            ..ConfigKeys::default()
        };
        let seen = keys.seen(&file)?.with_default("other", 1);
        // The key outside the section applies to both.
        assert_eq!((seen.size(&["num_labels"])?, seen.size(&["own"])?), (3, 4));
        assert_eq!(seen.size(&["width"])?, 3);
        assert_eq!(seen.unread(&["depth"]), ["text.forgotten"]);
        let depth = seen.section(&["depth"])?;
        assert_eq!(depth.map(|depth| depth.size(&["a"])).transpose()?, Some(1));
        assert_eq!(
            file.unread(&["dropout"]),
            ["text.depth.b", "text.forgotten", "unknown"]
        );
        Ok(())
    }
}
