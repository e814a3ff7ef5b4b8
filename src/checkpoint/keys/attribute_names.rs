//! Aliases that transformers' configuration classes accept for their keys (`attribute_map`).
//!
//! If a file has both a key and its alias, transformers uses the alias.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::checkpoint::config_json::ConfigJson;

/// Returns a file with the values of aliases under the class's own keys.
pub(crate) fn spelled_as_own(json: &ConfigJson) -> ConfigJson {
    let mut value = json.value().clone();
    let renamed = value.as_object_mut().map(move_from_aliases);
    json.with_value(value, renamed.unwrap_or_default())
}

/// Moves values from aliases to the classes' own keys, and returns each own key's spelling in the file.
fn move_from_aliases(object: &mut Map<String, Value>) -> BTreeMap<String, String> {
    let mut renamed = BTreeMap::new();
    let model_type = object.get("model_type").and_then(Value::as_str);
    let names: Vec<_> = model_type.map_or_else(Vec::new, |name| of_type(name).collect());
    for (further, own) in names {
        if let Some(value) = object.remove(further).filter(|value| !value.is_null()) {
            object.insert(own.to_string(), value);
            renamed.insert(own.to_string(), further.to_string());
        }
    }
    renamed
}

/// Returns a model type's pairs of an alias and the class's own key.
fn of_type(model_type: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("attribute_names.txt").lines();
    let rows = lines.filter_map(|line| line.split_once(": "));
    rows.filter(move |(types, _)| types.split(' ').any(|of| of == model_type))
        .flat_map(|(_, pairs)| pairs.split(' ').filter_map(|pair| pair.split_once('=')))
}
