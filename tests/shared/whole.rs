//! The committed checkpoints of whole models: those with a fixture from the model's input to its logits.

use std::{fs, path::Path};

use candle_blocks::{Checkpoint, CheckpointOptions, verify::Fixture};

use crate::{
    composed::of_any,
    weights::{is_present, weights},
};

/// The file that judges a whole model.
const FIXTURE: &str = "whole.safetensors";

/// A committed checkpoint of a whole model.
#[derive(Clone, Debug)]
pub struct Whole {
    /// The folder under `weights/`: `heads/bert-masked_lm`.
    pub name: String,
}

impl Whole {
    pub fn open(&self) -> Checkpoint {
        let options = CheckpointOptions::default().whole();
        let opened = options.open(weights(&self.name));
        opened.unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    pub fn fixture(&self) -> Fixture {
        let path = weights(&self.name).join(FIXTURE);
        Fixture::open(path).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}

/// Returns the share of its tolerance that a whole model's gradient may use, which passes through every block.
pub fn of_whole() -> f64 {
    of_any().powi(2)
}

/// Returns every committed checkpoint with a whole model; in the package, those that it contains.
pub fn wholes() -> Vec<Whole> {
    let mut found = Vec::new();
    for folder in ["", "families", "heads"] {
        if is_present(folder) {
            add(&weights(folder), folder, &mut found);
        }
    }
    let expected = if is_present("heads") { 140 } else { 4 };
    assert!(found.len() >= expected, "only {}", found.len());
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn add(folder: &Path, name: &str, found: &mut Vec<Whole>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let own = path.file_name().unwrap().to_str().unwrap();
        if path.join(FIXTURE).is_file() {
            let name = format!("{name}/{own}");
            found.push(Whole {
                name: name.trim_start_matches('/').to_string(),
            });
        }
    }
}
