//! Opens a `config.json` in which a test changes some keys.

use std::fs;

use candle_blocks::{Architecture, Result};
use serde_json::Value;

/// Opens a configuration with these keys replaced.
pub fn opened_with(mut config: Value, changes: Value) -> Result<Architecture> {
    let changes = changes.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(changes);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    Architecture::open(&path)
}
