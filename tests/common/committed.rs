//! Every committed checkpoint with the fixtures that judge it.

use std::path::PathBuf;

use candle_blocks::{
    Checkpoint, CheckpointOptions, checkpoint::scheme::StackPart, trace::TraceInput,
    verify::Fixture,
};

use super::{is_present, present, weights};

/// The checkpoints that are no family's own.
pub const OTHERS: [&str; 5] = [
    "tiny-bert",
    "tiny-gpt2",
    "tiny-bert-bf16",
    "tiny-gpt2-f16",
    "minilm-block0",
];

/// One stack of a committed checkpoint.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The folder under `weights/`: `families/t5`.
    pub name: String,
    /// Which stack, if the checkpoint holds several.
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

    pub fn fixture(&self) -> Fixture {
        let path = self.folder().join(fixture_name(self.part));
        Fixture::open(path).unwrap_or_else(|e| panic!("{}: {e}", self.label()))
    }
}

fn fixture_name(part: Option<StackPart>) -> String {
    match part {
        Some(part) => format!("fixture.{part}.safetensors"),
        None => "fixture.safetensors".to_string(),
    }
}

/// How much of their bounds the f32 gradients of a stack may use. In these fixtures PyTorch's error is smaller than usual by
/// luck: on other inputs ours is 0.8 of it, as in other families (src/verify/tolerance.rs).
pub fn gradient_allowance(stack: &Committed) -> f64 {
    // The second only with the portable kernels.
    match stack.name.as_str() {
        "families/gemma3_text" | "families/modernbert" => 2.0,
        _ => 1.0,
    }
}

/// The input side of a fixture.
pub fn input(fixture: &Fixture) -> TraceInput {
    TraceInput::new(|name| fixture.tensor(name).cloned()).unwrap()
}

/// The folders of all families, or none in the package, which leaves them out.
fn folders() -> Vec<PathBuf> {
    if !is_present("families") {
        return Vec::new();
    }
    let entries = std::fs::read_dir(weights("families")).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 60, "only {} families", folders.len());
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

/// Every stack of every committed checkpoint.
pub fn all() -> Vec<Committed> {
    let others = present(OTHERS, |&name| name).into_iter();
    let others = others.flat_map(|name| stacks(name.to_string()));
    others.chain(families()).collect()
}

/// The stacks of a checkpoint: as many as it has fixtures.
fn stacks(name: String) -> Vec<Committed> {
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
