//! `--adapter`, and adapters beside a model: they are applied, and that is said.

use std::fs;

use candle_blocks::verify::{Expected, compare};

use crate::{
    scratch::{Scratch, load},
    weights::{is_present, weights},
};

/// Returns a scratch folder whose input is an adapter fixture's, without the output that PEFT computed.
fn scratch(base: &str, judge: &str) -> Scratch {
    let scratch = Scratch::of(base);
    fs::copy(weights("adapters").join(judge), scratch.input()).unwrap();
    scratch.change_input(|tensors| tensors.retain(|name, _| !name.starts_with("output")));
    scratch
}

fn assert_output(scratch: &Scratch, judge: &str) {
    let judge = load(&weights("adapters").join(judge));
    let ours = load(&scratch.output());
    let expected = Expected::new(judge["output"].clone(), Some(judge["output.f64"].clone()));
    let comparison = compare("logits", &ours["logits"], &expected.unwrap(), None);
    assert!(comparison.passed(), "{comparison:?}");
}

#[test]
fn adapters_that_are_given_are_applied_in_their_order() {
    if !is_present("adapters") || !is_present("families") {
        return;
    }
    let scratch = scratch("families/qwen2", "several.safetensors");
    let of = |name: &str| weights("adapters").join(name).display().to_string();
    let answer = scratch.run(&["--adapter", &of("patterns"), "--adapter", &of("rooted")]);
    answer.assert_status(0);
    assert_eq!(answer.stderr, "");
    assert_output(&scratch, "several.safetensors");
    let inspected = scratch.inspect(&["--adapter", &of("patterns")]);
    inspected.assert_status(0);
    assert!(
        inspected.stdout.contains("changes 6 tensors"),
        "{}",
        inspected.stdout
    );
}

#[test]
fn an_adapter_beside_the_model_is_applied_and_reported() {
    if !is_present("adapters") {
        return;
    }
    let scratch = scratch("tiny-bert", "classifier/expected.safetensors");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        let from = weights("adapters/classifier").join(file);
        fs::copy(from, scratch.model().join(file)).unwrap();
    }
    let answer = scratch.run(&[]);
    answer.assert_status(0);
    let lines: Vec<&str> = answer.stderr.lines().collect();
    assert!(
        matches!(lines[..], [line] if line.starts_with("note: the adapter beside the weights in ")),
        "{lines:?}"
    );
    assert_output(&scratch, "classifier/expected.safetensors");
    // A key that nobody knows is said, and not followed.
    let config = scratch.model().join("adapter_config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replacen('{', "{\"use_dreams\": true,", 1)).unwrap();
    let answer = scratch.run(&[]);
    answer.assert_status(0);
    let words = "has unknown keys, which are not followed: use_dreams";
    assert!(answer.stderr.contains(words), "{}", answer.stderr);
    assert_output(&scratch, "classifier/expected.safetensors");
}

#[test]
fn an_adapter_is_not_written_over() {
    if !is_present("adapters") || !is_present("families") {
        return;
    }
    let scratch = scratch("families/qwen2", "several.safetensors");
    let folder = scratch.path("adapter");
    fs::create_dir(&folder).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(weights("adapters/rooted").join(file), folder.join(file)).unwrap();
    }
    let output = folder.join("adapter_model.safetensors");
    let flags = [
        "--adapter",
        folder.to_str().unwrap(),
        "--output",
        output.to_str().unwrap(),
    ];
    let answer = scratch.run(&flags);
    answer.assert_refused(&["--output", "a file that the run reads"]);
}
