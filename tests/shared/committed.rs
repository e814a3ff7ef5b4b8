//! The committed checkpoints, stack by stack; `all.rs` has all of them.

use std::path::PathBuf;

use candle_blocks::{Checkpoint, CheckpointOptions, checkpoint::scheme::StackPart};

use crate::weights::{is_present, weights};

/// A stack in a committed checkpoint.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The folder under `weights/`: `families/t5`.
    pub name: String,
    /// The selected stack, if the checkpoint contains several.
    pub part: Option<StackPart>,
}

impl Committed {
    pub fn folder(&self) -> PathBuf {
        weights(&self.name)
    }

    /// Name and part, for messages.
    pub fn label(&self) -> String {
        match self.part {
            Some(part) => format!("{} ({part})", self.name),
            None => self.name.clone(),
        }
    }

    /// Options that pick this stack.
    pub fn options(&self) -> CheckpointOptions {
        match self.part {
            Some(part) => CheckpointOptions::default().part(part),
            None => CheckpointOptions::default(),
        }
    }

    pub fn open(&self) -> Checkpoint {
        let opened = self.options().open(self.folder());
        opened.unwrap_or_else(|e| panic!("{}: {e}", self.label()))
    }
}

/// The file that judges a stack.
pub fn fixture_name(part: Option<StackPart>) -> String {
    match part {
        Some(part) => format!("fixture.{part}.safetensors"),
        None => "fixture.safetensors".to_string(),
    }
}

/// Returns the folders of all families, or none in the package, which leaves them out.
fn folders() -> Vec<PathBuf> {
    if !is_present("families") {
        return Vec::new();
    }
    let entries = std::fs::read_dir(weights("families")).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 100, "only {} families", folders.len());
    folders
}

/// Every stack under `weights/families`; none in the package, which leaves them out.
pub fn families() -> Vec<Committed> {
    let name = |folder: PathBuf| folder.file_name().unwrap().to_str().unwrap().to_string();
    let names = folders().into_iter().map(name);
    names
        .flat_map(|name| stacks(format!("families/{name}")))
        .collect()
}

/// Returns a checkpoint's stacks, one for each fixture.
pub fn stacks(name: String) -> Vec<Committed> {
    let parts = [
        None,
        Some(StackPart::Encoder),
        Some(StackPart::Decoder),
        Some(StackPart::Text),
        Some(StackPart::Vision),
    ];
    let is_there = |part: &Option<StackPart>| weights(&name).join(fixture_name(*part)).is_file();
    let stack = |part| Committed {
        name: name.clone(),
        part,
    };
    let stacks: Vec<_> = parts.into_iter().filter(is_there).map(stack).collect();
    assert!(!stacks.is_empty(), "{name} has no fixture");
    stacks
}

/// Returns all checkpoints under `weights/` that pass [`is_present`].
pub fn present<T>(checkpoints: impl IntoIterator<Item = T>, name: fn(&T) -> &str) -> Vec<T> {
    let checkpoints = checkpoints.into_iter();
    checkpoints.filter(|c| is_present(name(c))).collect()
}
