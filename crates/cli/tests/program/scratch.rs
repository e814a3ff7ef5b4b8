//! Runs the built program on a copy of a committed checkpoint, which a test may change first.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use candle_blocks::{
    candle_core::{Device, Tensor, safetensors},
    checkpoint::write::write_safetensors,
};
use serde_json::Map;

use crate::weights::weights;

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// A folder with `model/`, `input.safetensors` (the checkpoint's fixture) and an empty `out/`.
pub struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    /// With the committed checkpoint `weights/<name>`.
    pub fn of(name: &str) -> Self {
        let scratch = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for folder in ["model", "out"] {
            fs::create_dir(scratch.path(folder)).unwrap();
        }
        let copy = |from: &str, to: PathBuf| {
            fs::copy(weights(name).join(from), to).unwrap();
        };
        copy("config.json", scratch.config());
        copy("model.safetensors", scratch.weights());
        copy("fixture.safetensors", scratch.input());
        scratch
    }

    pub fn path(&self, local: &str) -> PathBuf {
        self.folder.path().join(local)
    }

    pub fn model(&self) -> PathBuf {
        self.path("model")
    }

    pub fn config(&self) -> PathBuf {
        self.path("model/config.json")
    }

    pub fn weights(&self) -> PathBuf {
        self.path("model/model.safetensors")
    }

    pub fn index(&self) -> PathBuf {
        self.path("model/model.safetensors.index.json")
    }

    pub fn input(&self) -> PathBuf {
        self.path("input.safetensors")
    }

    pub fn output(&self) -> PathBuf {
        self.path("out/stages.safetensors")
    }

    /// Returns the names of the files in `out/`, including hidden ones.
    pub fn written(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("out")).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        entries.map(|entry| name(entry.unwrap())).collect()
    }

    pub fn change_weights(&self, change: impl FnOnce(&mut Tensors)) {
        change_tensors(&self.weights(), change);
    }

    pub fn change_input(&self, change: impl FnOnce(&mut Tensors)) {
        change_tensors(&self.input(), change);
    }

    /// Replaces the single file by two shards and an index.
    pub fn shard(&self) {
        let mut weight_map = Map::new();
        let mut shards: [Vec<(String, Tensor)>; 2] = Default::default();
        for (i, (name, tensor)) in load(&self.weights()).into_iter().enumerate() {
            weight_map.insert(name.clone(), shard_name(i % 2).into());
            shards[i % 2].push((name, tensor));
        }
        for (i, shard) in shards.into_iter().enumerate() {
            write_safetensors(self.model().join(shard_name(i)), &shard, None).unwrap();
        }
        fs::remove_file(self.weights()).unwrap();
        let index = serde_json::json!({"metadata": {}, "weight_map": weight_map});
        fs::write(self.index(), index.to_string()).unwrap();
    }

    /// `candle-blocks run` on model and input.
    pub fn run(&self, flags: &[&str]) -> Answer {
        answer(&mut self.run_command(flags))
    }

    /// [`Self::run`], to be changed first.
    pub fn run_command(&self, flags: &[&str]) -> Command {
        let (model, input, output) = (self.model(), self.input(), self.output());
        let mut command = program();
        command.arg("run").arg("--model").arg(model);
        command.arg("--input").arg(input);
        if !flags.contains(&"--output") {
            command.arg("--output").arg(output);
        }
        command.args(flags);
        command
    }

    /// Runs `candle-blocks verify` on the model, with the input as a fixture.
    pub fn verify(&self, flags: &[&str]) -> Answer {
        answer(&mut self.verify_command(flags))
    }

    /// [`Self::verify`], to be changed first.
    pub fn verify_command(&self, flags: &[&str]) -> Command {
        let (model, fixture) = (self.model(), self.input());
        let mut command = program();
        command.arg("verify").arg("--model").arg(model);
        command.arg("--fixture").arg(fixture).args(flags);
        command
    }

    /// Runs `candle-blocks inspect` on the model.
    pub fn inspect(&self, flags: &[&str]) -> Answer {
        answer(program().arg("inspect").arg(self.model()).args(flags))
    }
}

/// The program's output and exit status.
#[derive(Debug)]
pub struct Answer {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap()
    }

    #[track_caller]
    pub fn assert_status(&self, status: i32) {
        assert_eq!(self.status, Some(status), "{self:#?}");
    }

    /// Asserts a refusal: status 2, one line on standard error with all `words`, no panic.
    #[track_caller]
    pub fn assert_refused(&self, words: &[&str]) {
        self.assert_status(2);
        assert_eq!(self.stdout, "", "{self:#?}");
        assert!(self.stderr.starts_with("error: "), "{self:#?}");
        assert_eq!(self.stderr.trim_end().lines().count(), 1, "{self:#?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {self:#?}");
        }
    }
}

/// The built program.
pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_candle-blocks"))
}

pub fn answer(command: &mut Command) -> Answer {
    said(command.output().unwrap())
}

/// Returns what a command says when it reads these lines.
pub fn answer_to(lines: &str, command: &mut Command) -> Answer {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines.as_bytes()).unwrap();
    drop(input);
    said(child.wait_with_output().unwrap())
}

fn said(output: Output) -> Answer {
    Answer {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

pub fn load(path: &Path) -> Tensors {
    let tensors = safetensors::load(path, &Device::Cpu).unwrap();
    tensors.into_iter().collect()
}

fn change_tensors(path: &Path, change: impl FnOnce(&mut Tensors)) {
    let mut tensors = load(path);
    change(&mut tensors);
    let tensors: Vec<_> = tensors.into_iter().collect();
    write_safetensors(path, &tensors, None).unwrap();
}

fn shard_name(i: usize) -> String {
    format!("model-{:05}-of-00002.safetensors", i + 1)
}
