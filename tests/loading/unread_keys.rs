//! Keys in `config.json` that nothing reads are in the report, unless they are known to change nothing.

use std::fs;

use candle_blocks::CheckpointOptions;
use candle_blocks::checkpoint::scheme::StackPart;
use serde_json::{Map, Value, json};

use crate::committed;
use crate::weights::{is_present, weights};

/// Returns the reported keys for a committed `config.json` with these additional keys.
fn unread(folder: &str, keys: &[(&str, Value)]) -> Vec<String> {
    let source = weights(folder);
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
    config.extend(
        keys.iter()
            .map(|(key, value)| (key.to_string(), value.clone())),
    );
    let changed = tempfile::tempdir().unwrap();
    let path = changed.path().join("config.json");
    fs::write(&path, Value::from(config).to_string()).unwrap();
    let options = match folder.ends_with("whisper") {
        true => CheckpointOptions::default().part(StackPart::Encoder),
        false => CheckpointOptions::default(),
    };
    let checkpoint = options.config(path).open(source);
    checkpoint.unwrap().report().unread_keys
}

#[test]
fn a_key_of_nobody_is_named_and_one_that_changes_nothing_is_not() {
    let keys = [
        ("use_bidirectional_attention", json!(true)),
        ("per_layer_config", json!({"0": {"hidden_size": 3}})),
        ("own", json!({"a": 1, "b": 2})),
        ("hidden_dropout_prob", json!(0.2)),
        ("use_cache", json!(false)),
        ("quantization_config", Value::Null),
    ];
    let expected = ["own", "per_layer_config", "use_bidirectional_attention"];
    assert_eq!(unread("tiny-bert", &keys), expected);
    let text = unread("tiny-bert", &keys[2..3]);
    assert_eq!(text, ["own"]);
}

#[test]
fn a_class_of_one_of_two_stacks_whose_head_is_not_known_is_named() {
    if !is_present("families") {
        return;
    }
    for (class, expected) in [
        ("WhisperForAudioClassification", &["architectures"][..]),
        ("WhisperForConditionalGeneration", &[]),
        ("WhisperModel", &[]),
    ] {
        let keys = [("architectures", json!([class]))];
        assert_eq!(unread("families/whisper", &keys), expected, "{class}");
    }
}

/// Each is a file that transformers wrote, or as those on the Hub.
#[test]
fn the_committed_files_have_no_key_of_nobody() {
    for stack in committed::families() {
        let unread = stack.open().report().unread_keys;
        // transformers' own Llama does not read its share of a rotation either.
        let expected: &[&str] = match stack.name.as_str() {
            "families/llama-biases" => &["rope_parameters.partial_rotary_factor"],
            _ => &[],
        };
        assert_eq!(unread, expected, "{}", stack.label());
    }
}
