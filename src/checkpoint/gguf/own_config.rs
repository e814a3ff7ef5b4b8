//! The `config.json` that a GGUF file stands for.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::architecture::listed;
use super::config::{Described, Keys};
use super::described;
use super::lacking::lacks;
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::{TensorFiles, is_named};
use crate::error::{Error, Result};
use candle_blocks_files::gguf::{is_gguf, other_than_model};

/// Reads a `config.json`, or the keys of a GGUF file.
pub(in crate::checkpoint) fn open_config(path: &Path) -> Result<ConfigJson> {
    if !is_gguf(path) {
        return ConfigJson::open(path);
    }
    let (value, spelled) = read(path)?;
    Ok(ConfigJson::given(path, value.clone()).with_value(value, spelled))
}

/// Like [`open_config`], for an optional file.
pub(in crate::checkpoint) fn open_named_config(path: &Path) -> Result<Option<ConfigJson>> {
    is_named(path).then(|| open_config(path)).transpose()
}

/// Returns a GGUF file's keys as a `config.json`, and their spelling in the file: messages name what the file has.
fn read(path: &Path) -> Result<(Value, BTreeMap<String, String>)> {
    let files = TensorFiles::open(path)?;
    let Some(gguf) = files.gguf() else {
        return Err(Error::MissingConfig {
            path: path.to_path_buf(),
        });
    };
    described(&files, gguf, |file| {
        let config = config(file)?;
        let entry = Keys::of(file).entry();
        let keys = entry.iter().flat_map(|entry| {
            let spelled = |key: &str| format!("{}.{key}", entry.name);
            // A part of each head is computed of this key.
            let is_part = |(_, call): &&(_, &str)| call.split(' ').next() == Some("part-of-head");
            let parts = entry.calls.iter().filter(is_part);
            let parts = parts.map(|(json, _)| (*json, "rope.dimension_count"));
            let keys = entry.keys.iter().map(|(json, key)| (*json, key.gguf));
            keys.chain(parts)
                .map(|(json, key)| (json.to_string(), spelled(key)))
                .collect::<Vec<_>>()
        });
        Ok((config, keys.collect()))
    })
}

/// Returns the `config.json` that a file's keys stand for.
///
/// # Errors
/// If the architecture is not read, or a key is missing or has another type.
pub(super) fn config(file: &Described) -> Result<Value> {
    let keys = Keys::of(file);
    check_type(file)?;
    match keys.entry() {
        Some(entry) => {
            let config = keys.config(entry)?;
            keys.check_unread(entry)?;
            Ok(config)
        }
        None => Err(Error::ConfigKey {
            path: file.path.to_path_buf(),
            key: "\"general.architecture\"".to_string(),
            reason: format!(
                "found {:?}{}; supported are: {}",
                keys.architecture,
                lacks(keys.architecture),
                listed(|entry| Some(entry.name))
            ),
        }),
    }
}

/// Refuses a file that is no model, by what it is.
fn check_type(file: &Described) -> Result<()> {
    let Some(what) = other_than_model(file.metadata) else {
        return Ok(());
    };
    let kind = file.metadata.get("general.type").and_then(Value::as_str);
    Err(Error::NotGguf {
        path: file.path.to_path_buf(),
        reason: format!(
            "it is {what}, not a model (\"general.type\" is {}); open the model's own file",
            json!(kind.unwrap_or("model"))
        ),
    })
}
