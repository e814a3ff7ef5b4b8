//! Names from a file reach the terminal without their control characters, which could hide text or forge it.

use std::fs;

use candle_blocks::{Checkpoint, Weights, candle_core::Tensor};
use serde_json::{Value, json};

use crate::{
    message::message, scratch::Answer, scratch::Scratch, scratch::answer, scratch::program,
};

/// Carriage return, a separate line, colors, the one-byte form of an escape sequence, and right-to-left override.
const HOSTILE: &str = "\r\nok\u{1b}[31m\u{9b}2J\u{202e}txt\u{7f}";

fn is_shown(c: char) -> bool {
    !c.is_control() && c != '\u{202e}'
}

#[track_caller]
fn assert_plain(text: &str) {
    assert!(text.chars().all(is_shown), "{text:?}");
    assert!(
        text.contains("\\u{1b}[31m\\u{9b}2J\\u{202e}txt\\u{7f}"),
        "{text:?}"
    );
}

#[track_caller]
fn assert_output(text: &str) {
    for line in text.lines() {
        assert!(line.chars().all(is_shown), "{line:?}");
    }
    assert!(!text.lines().any(|line| line.starts_with("ok")), "{text:?}");
}

/// Returns a BERT with an additional tensor called `name`.
fn scratch(name: &str) -> Scratch {
    let scratch = Scratch::of("tiny-bert");
    scratch.change_weights(|tensors| {
        let one: Tensor = tensors.values().next().unwrap().clone();
        tensors.insert(name.to_string(), one);
    });
    scratch
}

#[test]
fn errors_escape_what_a_file_says() {
    let unused = scratch(&format!("encoder.{HOSTILE}"));
    let checkpoint = Checkpoint::open(unused.model()).unwrap();
    let loaded = checkpoint.load(Weights::Dense(
        candle_blocks::candle_core::DType::F32,
        &crate::device::device(),
    ));
    assert_plain(&message(loaded.stack()));
    let answer = unused.run(&[]);
    answer.assert_refused(&["\\u{1b}"]);
    assert_plain(answer.stderr.trim_end());
}

#[test]
fn errors_escape_what_a_configuration_says() {
    for keys in [
        json!({"model_type": HOSTILE}),
        json!({"hidden_act": HOSTILE}),
        json!({"hidden_size": HOSTILE}),
        json!({"quantization_config": {"quant_method": HOSTILE}}),
    ] {
        let scratch = Scratch::of("tiny-bert");
        scratch.set_config(keys.clone());
        let text = message(Checkpoint::open(scratch.model()));
        assert!(text.chars().all(is_shown), "{keys}: {text:?}");
        scratch.inspect(&[]).assert_refused(&["config.json"]);
    }
}

#[test]
fn errors_escape_what_an_index_says() {
    let scratch = Scratch::of("tiny-bert");
    scratch.shard();
    let index = fs::read_to_string(scratch.index()).unwrap();
    let mut index: Value = serde_json::from_str(&index).unwrap();
    let map = index["weight_map"].as_object_mut().unwrap();
    *map.values_mut().next().unwrap() = format!("{HOSTILE}.safetensors").into();
    fs::write(scratch.index(), index.to_string()).unwrap();
    assert_plain(&message(Checkpoint::open(scratch.model())));
}

#[test]
fn reports_escape_names() {
    let unused = scratch(&format!("encoder.{HOSTILE}"));
    let inspected = unused.inspect(&[]);
    inspected.assert_status(0);
    assert!(inspected.stdout.contains("unused: encoder.\\r\\nok\\u{1b}"));
    assert_output(&inspected.stdout);
    // A machine gets the name itself.
    let json = unused.inspect(&["--json"]);
    assert_output(&json.stdout);
    let names = &json.json()["tensors"]["unused"];
    assert_eq!(*names, json!([format!("encoder.{HOSTILE}")]));
}

#[test]
fn the_table_of_verify_escapes_names() {
    let scratch = Scratch::of("tiny-bert");
    let name = format!("grads.{HOSTILE}");
    scratch.change_input(|tensors| {
        let one = tensors["grads.hidden_states"].clone();
        tensors.insert(name.clone(), one);
    });
    for flags in [&["--backward"][..], &["--backward", "--json"]] {
        let Answer { stdout, stderr, .. } = scratch.verify(flags);
        assert!(stdout.contains("[31m"), "{stdout}{stderr}");
        assert_output(&stdout);
        assert_output(&stderr);
    }
}

#[test]
fn a_familys_name_is_escaped() {
    let scratch = Scratch::of("tiny-bert");
    let table = fs::read_to_string(crate::weights::weights("../examples/family.json")).unwrap();
    let mut table: Value = serde_json::from_str(&table).unwrap();
    table["name"] = HOSTILE.into();
    let path = scratch.path("table.json");
    fs::write(&path, table.to_string()).unwrap();
    let path = path.to_str().unwrap();
    let inspected = scratch.inspect(&["--family", path]);
    inspected.assert_status(0);
    assert_output(&inspected.stdout);
    let mut bench = program();
    bench.args([
        "bench", "--op", "model", "--batch", "1", "--seq", "4", "--family", path,
    ]);
    let bench = answer(bench.arg("--model").arg(scratch.model()));
    assert_output(&bench.stdout);
}
