//! Every family's checkpoint against transformers, forward and backward.

mod common;

use std::path::{Path, PathBuf};

use candle_blocks::{
    CheckpointOptions, StackPart,
    candle_core::DType,
    trace::{self, TraceInput},
    verify::{Fixture, verify},
};
use common::{device, weights};

/// The folders of all families, or `None` in the package, which leaves them out.
fn folders() -> Option<Vec<PathBuf>> {
    let root = weights("families");
    if !root.is_dir() {
        println!("LEFT OUT: weights/families is not part of the package; see weights/README.md");
        return None;
    }
    let entries = std::fs::read_dir(root).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 60, "only {} families", folders.len());
    Some(folders)
}

/// The fixtures of a checkpoint, each with the stack that it is of.
fn fixtures(folder: &Path) -> Vec<(PathBuf, Option<StackPart>)> {
    let parts = [
        ("fixture.safetensors", None),
        ("fixture.encoder.safetensors", Some(StackPart::Encoder)),
        ("fixture.decoder.safetensors", Some(StackPart::Decoder)),
        ("fixture.text.safetensors", Some(StackPart::Text)),
        ("fixture.vision.safetensors", Some(StackPart::Vision)),
    ];
    let with_path = parts.map(|(name, part)| (folder.join(name), part));
    let there: Vec<_> = with_path
        .into_iter()
        .filter(|(path, _)| path.is_file())
        .collect();
    assert!(!there.is_empty(), "{} has no fixture", folder.display());
    there
}

/// Everything that does not pass, with its table.
fn failures(dtype: DType) -> Vec<String> {
    let mut failures = Vec::new();
    for folder in folders().unwrap_or_default() {
        for (path, part) in fixtures(&folder) {
            let options = match part {
                Some(part) => CheckpointOptions::default().part(part),
                None => CheckpointOptions::default(),
            };
            let checkpoint = options.open(&folder).unwrap_or_else(|e| panic!("{e}"));
            let fixture = Fixture::open(&path).unwrap();
            let input = TraceInput::new(|name| fixture.tensor(name).cloned()).unwrap();
            let run = match fixture.gradients().is_empty() {
                true => trace::run,
                false => trace::run_backward,
            };
            match run(&checkpoint, &input, dtype, &device()) {
                Err(error) => failures.push(format!("{}: {error}", path.display())),
                Ok(stages) => {
                    let report = verify(&fixture, &stages.into_iter().collect());
                    if !report.passed {
                        failures.push(format!("{}\n{report}", path.display()));
                    }
                }
            }
        }
    }
    failures
}

#[test]
fn every_family_gives_transformers_outputs_and_gradients() {
    let failures = failures(DType::F32);
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn every_family_gives_them_in_f64() {
    let failures = failures(DType::F64);
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// No table has a rule for tensors that its checkpoint lacks, or leaves a tensor unexplained.
#[test]
fn every_tensor_of_every_family_is_accounted_for() {
    for folder in folders().unwrap_or_default() {
        for (_, part) in fixtures(&folder) {
            let options = match part {
                Some(part) => CheckpointOptions::default().part(part),
                None => CheckpointOptions::default(),
            };
            let report = options.open(&folder).unwrap().report();
            assert!(report.unused.is_empty(), "{}\n{report}", folder.display());
            assert!(report.missing.is_empty(), "{}\n{report}", folder.display());
        }
    }
}
