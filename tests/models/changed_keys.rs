//! Keys in `config.json` that change results as in transformers: the files in `weights/keys`, one for each change.

use std::{collections::HashMap, fs, path::PathBuf};

use candle_blocks::candle_core::{DType, Tensor};
use candle_blocks::trace::{self, TraceInput};
use candle_blocks::verify::{Fixture, verify};
use candle_blocks::{CheckpointOptions, Result};
use serde_json::{Map, Value};

use crate::device::device;
use crate::weights::{is_present, weights};

/// transformers' results for a committed checkpoint with one changed key in config.json.
struct Change {
    path: PathBuf,
    fixture: Fixture,
}

/// All there are; none in the package, which leaves out the checkpoints that they change.
fn changes() -> Vec<Change> {
    if !is_present("families") {
        return Vec::new();
    }
    let entries = fs::read_dir(weights("keys")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let open = |path: PathBuf| Change {
        fixture: Fixture::open(&path).unwrap(),
        path,
    };
    let found: Vec<Change> = paths.map(open).collect();
    assert!(found.len() >= 4, "only {}", found.len());
    found
}

impl Change {
    /// Runs the checkpoint with these keys in its config.json.
    fn run(&self, keys: Map<String, Value>) -> Result<HashMap<String, Tensor>> {
        let folder = weights(&self.fixture.metadata()["checkpoint"]);
        let text = fs::read_to_string(folder.join("config.json")).unwrap();
        let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
        config.extend(keys);
        let changed = tempfile::tempdir().unwrap();
        let path = changed.path().join("config.json");
        fs::write(&path, Value::from(config).to_string()).unwrap();
        let checkpoint = CheckpointOptions::default().config(path).whole();
        let input = TraceInput::new(|name| self.fixture.tensor(name).cloned())?;
        let stages = trace::run(&checkpoint.open(folder)?, &input, DType::F32, &device())?;
        Ok(stages.into_iter().collect())
    }
}

#[test]
fn a_changed_key_changes_results_as_in_transformers() {
    let mut failures = Vec::new();
    for change in changes() {
        let label = change.path.display();
        let keys = serde_json::from_str(&change.fixture.metadata()["keys"]).unwrap();
        let with = change.run(keys).unwrap_or_else(|e| panic!("{label}: {e}"));
        let report = verify(&change.fixture, &with);
        if !report.passed {
            failures.push(format!("{label}\n{report}"));
        }
        // The file sees that a key is not read: the numbers are others, or the class needs further input.
        let without = change.run(Map::new());
        if without.is_ok_and(|without| verify(&change.fixture, &without).passed) {
            failures.push(format!("{label}: the same without the key"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
