//! Writing and reading where any system call fails, does half its work, or is the process's last.
//!
//! `tracer.c` makes the n-th file operation fail, for every n. After any failure, a file with its final name is complete,
//! old or new. An operation that reports an error leaves nothing else, and one that reports success has done all its work.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::{
    collections::{BTreeMap, HashMap},
    env, fs,
    path::Path,
    process::Command,
    sync::LazyLock,
    thread,
};

use candle_blocks::{
    Architecture, Checkpoint, SaveOptions, Weights,
    candle_core::{DType, Device, Tensor},
    checkpoint::{ExistingFiles, GgufType, Quantization},
    train::{AdamW, AdamWConfig, Fresh, Lora, LoraConfig, ParameterGroup},
};
use tempfile::TempDir;

use crate::{
    trained::trained,
    weights::{left_out, weights},
};

/// Operations on a file or directory `target`, which exists already for all but the first.
pub const OPERATIONS: [&str; 7] = [
    "save in a new directory",
    "save",
    "save fresh parameters",
    "save the state of a training",
    "save adapters",
    "save adapters for PEFT",
    "quantise",
];
/// The error number for tracer.c.
const EIO: &str = "5";
const NO_SPACE: &str = "28";

/// Files' bytes by their paths below a directory, each with a final `/`; a single file has an empty path.
pub type Files = HashMap<String, Vec<u8>>;

/// Returns the change that each writer but the first makes, so that no two write the same files.
fn changed(checkpoint: &Checkpoint, writer: u64) -> Vec<(String, Tensor)> {
    let parameters = trained(checkpoint, DType::F32).into_iter();
    let changed = parameters.filter(|_| writer > 0).map(|(role, parameter)| {
        let tensor = parameter.as_tensor() + writer as f64;
        (role, tensor.unwrap())
    });
    changed.collect()
}

/// Makes ready, and returns what is to be done.
fn operation(name: &str, target: &Path, writer: u64) -> Box<dyn FnOnce() -> Result<(), String>> {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let target = target.to_path_buf();
    let replacing = SaveOptions::default().existing(ExistingFiles::Replace);
    let words = |result: candle_blocks::Result<()>| result.map_err(|error| error.to_string());
    match name {
        "save in a new directory" | "save" => {
            let changed = changed(&checkpoint, writer);
            Box::new(move || words(replacing.save(&checkpoint, target, changed)))
        }
        "save fresh parameters" => {
            let architecture = Architecture::open(weights("tiny-gpt2")).unwrap();
            let fresh = Fresh::new(
                architecture.initialization.clone(),
                1 + writer,
                DType::F32,
                &Device::Cpu,
            );
            fresh.stack(&architecture.config).unwrap();
            let parameters = fresh.parameters();
            Box::new(move || {
                let parameters = parameters.iter().map(|(role, v)| (role, v.as_tensor()));
                words(replacing.save_new(&architecture, target, parameters, &[]))
            })
        }
        "save the state of a training" => {
            let parameters = trained(&checkpoint, DType::F32);
            let groups = vec![ParameterGroup::new(parameters, 0.01)];
            let state = AdamW::new(groups, AdamWConfig::default()).unwrap();
            let notes = BTreeMap::from([("writer".to_string(), writer.to_string())]);
            Box::new(move || words(state.save(target, &notes)))
        }
        "save adapters" | "save adapters for PEFT" => {
            let mut stack = checkpoint
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .stack()
                .unwrap();
            let config = LoraConfig::new(2, 4.0, &["attention.query"]);
            let lora = Lora::attach(&mut stack, config, 3 + writer).unwrap();
            match name {
                "save adapters" => Box::new(move || words(lora.save(target))),
                _ => Box::new(move || words(lora.save_peft(&checkpoint, target))),
            }
        }
        "quantise" => {
            let quantization = Quantization::Gguf(GgufType::Q8_0);
            let changed = changed(&checkpoint, writer);
            Box::new(move || {
                let saved = replacing.save_quantized(
                    &checkpoint,
                    quantization,
                    target,
                    changed,
                    |_| Ok(()),
                );
                words(saved)
            })
        }
        "open" => Box::new(move || {
            let checkpoint = Checkpoint::open(&target).map_err(|error| error.to_string())?;
            let model = checkpoint
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .stack();
            model.map(drop).map_err(|error| error.to_string())
        }),
        other => panic!("no operation {other}"),
    }
}

/// The process that does it.
#[test]
#[ignore = "run by the others"]
fn traced() {
    let variables =
        ["OPERATION", "TARGET", "WRITER"].map(|name| env::var(format!("FAULTS_{name}")));
    let [Ok(name), Ok(target), Ok(writer)] = variables else {
        return;
    };
    let work = operation(&name, Path::new(&target), writer.parse().unwrap());
    let _ = fs::metadata("/faults begin");
    let result = work();
    let _ = fs::metadata("/faults end");
    println!(
        "outcome: {} :end",
        result.map_or_else(|error| error, |()| "done".to_string())
    );
}

static TRACER: LazyLock<(TempDir, bool)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files/tracer.c");
    let mut compiler = Command::new("cc");
    let compiler = compiler
        .args(["-O1", "-Wall", "-o"])
        .arg(folder.path().join("tracer"))
        .arg(source);
    let is_there = compiler.status().is_ok_and(|status| status.success());
    (folder, is_there)
});

/// Makes a process run an operation as one of several writers.
pub fn set<'c>(
    process: &'c mut Command,
    (name, target): (&str, &Path),
    writer: u64,
) -> &'c mut Command {
    process
        .env("FAULTS_OPERATION", name)
        .env("FAULTS_TARGET", target)
        .env("FAULTS_WRITER", writer.to_string())
        .env("RAYON_NUM_THREADS", "1")
}

/// Returns a process's final message.
pub fn said(text: &str) -> Option<&str> {
    let (_, said) = text.split_once("outcome: ")?;
    Some(said.split_once(" :end")?.0)
}

/// Returns a traced operation's message, if it was not killed, and the counts of its calls, if they were counted.
fn run(name: &str, target: &Path, kind: &str, at: usize) -> (Option<String>, Vec<usize>) {
    let counted = tempfile::NamedTempFile::new().unwrap();
    let tracer = TRACER.0.path().join("tracer");
    let shell = format!(
        "exec '{}' {kind} {at} \"$0\" --exact faults::traced --ignored --nocapture --test-threads 1 3>'{}'",
        tracer.display(),
        counted.path().display()
    );
    let mut process = Command::new("sh");
    process
        .args(["-c", &shell])
        .arg(env::current_exe().unwrap());
    let output = set(&mut process, (name, target), 0).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = said(&text);
    let was_killed = output.status.code() == Some(128 + 9);
    assert!(
        said.is_some() || was_killed,
        "{name}, {kind} {at}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let counted = fs::read_to_string(counted.path()).unwrap();
    let counted = counted.split_whitespace().flat_map(str::parse).collect();
    (said.map(str::to_string), counted)
}

/// The files at or below a path.
pub fn contents(path: &Path) -> Files {
    let mut found = HashMap::new();
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let below = contents(&entry.path()).into_iter();
            found.extend(below.map(|(path, bytes)| (format!("{name}/{path}"), bytes)));
        }
    } else if let Ok(bytes) = fs::read(path) {
        found.insert(String::new(), bytes);
    }
    found
}

/// A folder in which `target` is as before the operation.
pub fn folder(old: &Files) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in old {
        let path = match name.as_str() {
            "" => folder.path().join("target"),
            name => folder
                .path()
                .join("target")
                .join(name.trim_end_matches('/')),
        };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

/// Returns the files that an operation replaces: those of its first run with one byte changed.
pub fn old(name: &str, new: &Files) -> Files {
    let mut old = new.clone();
    if name == OPERATIONS[0] {
        old.clear();
    }
    for (file, bytes) in &mut old {
        if !file.ends_with(".json/") {
            *bytes.last_mut().unwrap() ^= 1;
        }
    }
    old
}

/// Returns an operation's number of file operations, and how many of them read or write.
fn count(name: &str, target: &Path) -> [usize; 2] {
    let (said, counted) = run(name, target, "count", 0);
    assert_eq!(said.as_deref(), Some("done"), "{name}");
    counted.try_into().unwrap()
}

/// Returns the problem after an operation with a fault, if there is one.
fn problem(
    name: &str,
    folder: &Path,
    said: Option<&str>,
    [old, new]: [&Files; 2],
) -> Option<String> {
    let found = contents(&folder.join("target"));
    let names = fs::read_dir(folder).unwrap().flatten();
    let beside: Vec<_> = names
        .map(|entry| entry.file_name())
        .filter(|name| name != "target")
        .collect();
    // The two files of an adapter for PEFT get their names one after the other; beside them lie those that have none yet.
    let is_whole = |(file, bytes): (&String, &Vec<u8>)| {
        let has_no_name = said.is_none() && file.starts_with('.');
        has_no_name
            || [old, new]
                .iter()
                .any(|files| files.get(file) == Some(bytes))
    };
    let each = name.ends_with("PEFT") && found.iter().all(is_whole);
    let is_named = |said: &str| {
        ["/target", "tiny-gpt2", folder.to_str().unwrap()]
            .iter()
            .any(|name| said.contains(name))
    };
    let problem = match said {
        _ if found != *old && found != *new && !each => "neither the old nor the new is there",
        Some("done") if found != *new => "not all is done",
        // Removing the old files may fail after everything else.
        Some("done") | None => return None,
        Some(_) if !beside.is_empty() => "something is left over",
        Some(said) if !is_named(said) => "the file is not named",
        Some(_) => return None,
    };
    Some(format!("{problem}; {said:?}, {beside:?}"))
}

/// Injects every fault into an operation; returns the number of faults, and the problems.
fn faults(name: &str) -> (usize, Vec<String>) {
    let first = tempfile::tempdir().unwrap();
    let target = first.path().join("target");
    count(name, &target);
    let new = contents(&target);
    let old = old(name, &new);
    let [n_calls, n_moving] = count(name, &folder(&old).path().join("target"));
    assert!(
        n_moving > 0 && n_calls > n_moving && !new.is_empty(),
        "{name}"
    );
    let (mut n, mut wrong) = (0, Vec::new());
    for (kind, last) in [(NO_SPACE, n_calls), ("kill", n_calls), ("short", n_moving)] {
        for at in 1..=last {
            let folder = folder(&old);
            let (said, _) = run(name, &folder.path().join("target"), kind, at);
            if let Some(problem) = problem(name, folder.path(), said.as_deref(), [&old, &new]) {
                wrong.push(format!("{name}, {kind} at call {at} of {last}: {problem}"));
            }
            n += 1;
        }
    }
    (n, wrong)
}

#[test]
fn a_write_that_meets_any_fault_leaves_the_old_or_the_new_whole() {
    if !TRACER.1 {
        left_out("faults while files are written: there is no C compiler");
        return;
    }
    let found = thread::scope(|scope| {
        let threads = OPERATIONS.map(|name| scope.spawn(move || faults(name)));
        threads.map(|thread| thread.join().unwrap())
    });
    let n: usize = found.iter().map(|(n, _)| n).sum();
    let wrong: Vec<_> = found.into_iter().flat_map(|(_, wrong)| wrong).collect();
    println!("{n} faults of {} operations", OPERATIONS.len());
    assert!(
        wrong.is_empty(),
        "{} of {n}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn a_read_that_meets_any_fault_is_whole_or_an_error() {
    if !TRACER.1 {
        left_out("faults while files are read: there is no C compiler");
        return;
    }
    let target = weights("tiny-gpt2");
    let [n_calls, n_moving] = count("open", &target);
    for at in 1..=n_calls {
        let (said, _) = run("open", &target, EIO, at);
        let said = said.unwrap();
        assert!(
            said == "done" || said.contains("tiny-gpt2"),
            "call {at} of {n_calls}: {said}"
        );
    }
    for at in 1..=n_moving {
        let (said, _) = run("open", &target, "short", at);
        assert_eq!(said.as_deref(), Some("done"), "call {at} of {n_moving}");
    }
}
