//! Notes of the program: each appears for the model that it is true of, and not for one beside it. `architecture/said` lists all
//! notes with their tests.

use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks::candle_core::{Device, Tensor};
use candle_blocks::checkpoint::write::write_safetensors;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scratch::{Scratch, answer, program};
use crate::weights::{is_present, weights};

/// Returns a copy of a committed folder.
fn copy(name: &str) -> TempDir {
    fn copied(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let from = entry.unwrap().path();
            let to = to.join(from.file_name().unwrap());
            match from.is_dir() {
                true => copied(&from, &to),
                false => drop(fs::copy(&from, &to).unwrap()),
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    copied(&weights(name), folder.path());
    folder
}

/// Changes a JSON file.
fn change(path: PathBuf, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(&path).unwrap_or(b"{}".into())).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// Returns what a successful command says on standard error.
fn said(arguments: &[&str], model: &Path) -> String {
    let mut command = program();
    command.args(arguments).arg("--model").arg(model);
    let done = answer(&mut command);
    done.assert_status(0);
    done.stderr
}

fn generated(model: &Path, arguments: &[&str]) -> String {
    said(
        &[&["generate", "--prompt", "Anne "], arguments].concat(),
        model,
    )
}

/// Returns what `run` says about token ids.
fn run(model: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let [ids, output] = ["ids", "output"].map(|name| folder.path().join(name));
    let tensor = Tensor::new(&[[1u32, 5, 3]], &Device::Cpu).unwrap();
    write_safetensors(&ids, &[("input_ids".to_string(), tensor)], None).unwrap();
    let [ids, output] = [&ids, &output].map(|path| path.to_str().unwrap());
    said(&["run", "--input", ids, "--output", output], model)
}

#[test]
fn usual_models_get_no_note() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let scratch = Scratch::of("tiny-bert");
    let usual = scratch.run(&[]).stderr;
    assert!(!usual.contains("note: "), "{usual}");
    let model = weights("tiny-gpt-text");
    let usual = generated(&model, &["--max-new-tokens", "3"]);
    assert!(!usual.contains("note: "), "{usual}");
    if !is_present("text") {
        return;
    }
    let texts = scratch.path("texts");
    fs::write(&texts, "a text\n").unwrap();
    let output = scratch.path("vectors.jsonl");
    let [texts, output] = [texts, output].map(|path| path.display().to_string());
    let arguments = ["embed", texts.as_str(), "--output", output.as_str()];
    let usual = said(&arguments, &weights("text/joined"));
    assert!(!usual.contains("note: "), "{usual}");
}

#[test]
fn a_key_that_the_attentions_of_transformers_follow_differently_is_noted() {
    if !is_present("families") {
        return;
    }
    let note = "depend on attn_implementation: alibi (as with \"sdpa\")";
    for (name, is_noted) in [("falcon-rw", true), ("falcon", false)] {
        let stderr = continued(&weights("families").join(name), &["--max-new-tokens", "1"]);
        assert_eq!(stderr.contains(note), is_noted, "{name}: {stderr}");
        assert!(
            is_noted || !stderr.contains("depend on attn_implementation"),
            "{stderr}"
        );
    }
}

/// Continues token ids.
fn continued(model: &Path, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let [ids, output] = ["ids", "output"].map(|name| folder.path().join(name));
    let tensor = Tensor::new(&[[1u32, 5, 3]], &Device::Cpu).unwrap();
    write_safetensors(&ids, &[("input_ids".to_string(), tensor)], None).unwrap();
    let [ids, output] = [&ids, &output].map(|path| path.to_str().unwrap());
    let files = ["generate", "--input-ids", ids, "--output", output];
    said(&[&files[..], arguments].concat(), model)
}

#[test]
fn a_length_that_ends_a_text_is_noted() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let [none, limit] = ["no length is given", "ends at the model's limit"];
    let folder = copy("tiny-gpt-text");
    // A byte that never comes.
    change(folder.path().join("config.json"), |config| {
        config["eos_token_id"] = json!(0);
    });
    let free = continued(folder.path(), &[]);
    assert!(free.contains(none) && !free.contains(limit), "{free}");
    let long = continued(folder.path(), &["--max-new-tokens", "100000"]);
    assert!(long.contains(limit) && !long.contains(none), "{long}");
    let short = continued(folder.path(), &["--max-new-tokens", "3"]);
    assert!(!short.contains(limit) && !short.contains(none), "{short}");
}

#[test]
fn keys_of_generation_that_are_not_followed_are_noted() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let folder = copy("tiny-gpt-text");
    let [unread, several] = [
        "generation does not follow",
        "each prompt is continued once",
    ];
    let with = |keys: Value| {
        let path = folder.path().join("generation_config.json");
        fs::write(path, keys.to_string()).unwrap();
        generated(folder.path(), &["--max-new-tokens", "3"])
    };
    let said = with(json!({"a_later_key": 3}));
    assert!(
        said.contains(unread) && said.contains("a_later_key"),
        "{said}"
    );
    assert!(!said.contains(several), "{said}");
    let said = with(json!({"do_sample": true, "num_return_sequences": 3}));
    assert!(said.contains(several) && !said.contains(unread), "{said}");
    let said = with(json!({"do_sample": false, "top_p": 1.0}));
    assert!(!said.contains(several) && !said.contains(unread), "{said}");
}

#[test]
fn a_class_whose_head_is_unknown_is_noted() {
    let note = "a class whose head this program does not have";
    let folder = copy("tiny-bert");
    let with = |class: &str| {
        let path = folder.path().join("config.json");
        change(path, |config| config["architectures"] = json!([class]));
        run(folder.path())
    };
    let said = with("BertForKeypointDetection");
    assert!(said.contains(note), "{said}");
    let said = with("BertModel");
    assert!(!said.contains(note), "{said}");
}

#[test]
fn a_rounding_that_is_not_followed_is_noted() {
    if !is_present("quantized") {
        return;
    }
    let note = "computed without rounding";
    let said = run(&weights("quantized/fp8"));
    assert!(said.contains(note), "{said}");
    let said = run(&weights("quantized/mlx"));
    assert!(!said.contains(note), "{said}");
}

#[test]
fn weights_that_are_dequantized_unasked_are_noted() {
    if !is_present("quantized") {
        return;
    }
    let note = "dequantized to f32";
    let generate = |model: &str, further: &[&str]| {
        let length = ["--max-new-tokens", "2"];
        continued(&weights(model), &[&length[..], further].concat())
    };
    let said = generate("quantized/mlx", &[]);
    assert!(said.contains(note), "{said}");
    for said in [
        generate("quantized/mlx", &["--precision", "f32"]),
        generate("families/llama", &[]),
    ] {
        assert!(!said.contains(note), "{said}");
    }
}

#[test]
fn more_threads_than_cores_are_noted() {
    let note = "threads compute, since more would wait";
    let inspect = |n: &str| {
        let mut command = program();
        command.arg("inspect").arg(weights("tiny-bert"));
        answer(command.env("RAYON_NUM_THREADS", n)).stderr
    };
    let [many, one] = ["4096", "1"].map(inspect);
    assert!(many.contains(note) && !one.contains(note), "{many} {one}");
}

#[test]
fn an_input_that_is_not_finite_is_noted() {
    let [result, input, weight] = [
        "values that are not finite; it was written",
        "so does the input",
        "holds a value that is not finite",
    ];
    let scratch = Scratch::of("tiny-bert");
    let clean = scratch.run(&[]);
    assert_eq!(clean.stderr, "");
    scratch.change_input(|tensors| {
        let states = tensors["hidden_states"].clone();
        let nan = ((&states - &states).unwrap() / 0.0).unwrap();
        tensors.insert("hidden_states".to_string(), (states + nan).unwrap());
    });
    let said = scratch.run(&[]).stderr;
    assert!(said.contains(result) && said.contains(input), "{said}");
    assert!(!said.contains(weight), "{said}");
}

#[test]
fn a_transformer_of_the_models_own_is_noted() {
    if !is_present("text") {
        return;
    }
    let note = "is the model's own code, which is not run";
    let folder = copy("text/joined");
    let texts = folder.path().join("texts");
    fs::write(&texts, "a text\n").unwrap();
    let embed = || {
        let output = folder.path().with_extension("jsonl");
        let mut command = program();
        command
            .arg("embed")
            .arg("--model")
            .arg(folder.path())
            .arg(&texts);
        let done = answer(command.arg("--output").arg(&output));
        let _ = fs::remove_file(output);
        done.assert_status(0);
        done.stderr
    };
    let said = embed();
    assert!(!said.contains(note), "{said}");
    change(folder.path().join("modules.json"), |modules| {
        modules[0]["type"] = json!("custom_st.Transformer");
    });
    let said = embed();
    assert!(said.contains(note) && said.contains("custom_st"), "{said}");
}

/// A cached snapshot, and an address at which nothing listens.
#[test]
fn a_hub_that_is_not_reached_is_noted() {
    let note = "the Hub was not reached";
    let cache = tempfile::tempdir().unwrap();
    let repository = cache.path().join("models--owner--name");
    let commit = "0123456789012345678901234567890123456789";
    let snapshot = repository.join("snapshots").join(commit);
    for folder in [
        &snapshot,
        &repository.join("refs"),
        &repository.join("blobs"),
    ] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(repository.join("refs/main"), commit).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(weights("tiny-bert").join(file), snapshot.join(file)).unwrap();
    }
    let inspect = |variable: (&str, &str)| {
        let mut command = program();
        command.args(["inspect", "--hub", "owner/name"]);
        command.env("HF_HUB_CACHE", cache.path());
        command.env_remove("HF_HUB_OFFLINE");
        let done = answer(command.env(variable.0, variable.1));
        done.assert_status(0);
        done.stderr
    };
    let said = inspect(("HF_ENDPOINT", "http://127.0.0.1:9"));
    assert!(said.contains(note), "{said}");
    let said = inspect(("HF_HUB_OFFLINE", "1"));
    assert!(!said.contains(note), "{said}");
}
