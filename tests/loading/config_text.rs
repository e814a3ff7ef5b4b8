//! `config.json` as Python and editors write it: non-finite values, and byte-order marks.

use std::fs;

use candle_blocks::{CheckpointOptions, Result, StackConfig};

use crate::weights::weights;

/// Opens a committed `config.json` after a change to its text.
fn opened(change: impl FnOnce(String) -> Vec<u8>) -> Result<StackConfig> {
    let source = weights("tiny-bert");
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, change(text)).unwrap();
    let options = CheckpointOptions::default().config(path);
    options
        .open(source)
        .map(|checkpoint| checkpoint.config().clone())
}

fn with(text: String, key: &str, value: &str) -> Vec<u8> {
    let rest = text.trim_start().strip_prefix('{').unwrap();
    format!("{{\"{key}\": {value}, {rest}").into_bytes()
}

#[test]
fn non_finite_values_of_unread_keys_are_ignored() {
    let usual = opened(String::into_bytes).unwrap();
    for value in ["NaN", "[0.0, Infinity]", "-Infinity", "\"Infinity\""] {
        let found = opened(|text| with(text, "time_step_limit", value)).unwrap();
        assert_eq!(found, usual, "{value}");
    }
}

#[test]
fn a_number_that_is_not_finite_is_refused_by_its_key() {
    for value in ["NaN", "Infinity", "-Infinity", "{\"__float__\": \"NaN\"}"] {
        let change =
            |text: String| with(text.replace("layer_norm_eps", "x"), "layer_norm_eps", value);
        let text = opened(change).unwrap_err().to_string();
        let number = value.trim_matches(|c: char| "{}\"_:".contains(c));
        let number = number.rsplit('"').next().unwrap();
        let said = format!("\"layer_norm_eps\": found {number}, expected a finite number");
        assert!(text.contains(&said), "{text}");
    }
}

#[test]
fn a_byte_order_mark_is_read_over_or_named() {
    let usual = opened(String::into_bytes).unwrap();
    let marked = opened(|text| [b"\xef\xbb\xbf", text.as_bytes()].concat());
    assert_eq!(marked.unwrap(), usual);
    let utf_16 = |text: String| {
        let units = text.encode_utf16().flat_map(u16::to_le_bytes);
        [0xff, 0xfe].into_iter().chain(units).collect()
    };
    let text = opened(utf_16).unwrap_err().to_string();
    assert!(text.contains("byte-order mark of UTF-16"), "{text}");
}

/// The key is no boolean, and transformers refuses it.
#[test]
fn tie_word_embeddings_as_a_string_is_refused_by_name() {
    let key = "tie_word_embeddings";
    let change = |text: String| with(text.replace(key, "x"), key, "\"false\"");
    let text = opened(change).unwrap_err();
    let said = "\"tie_word_embeddings\": found \"false\", expected true or false";
    assert!(text.to_string().contains(said), "{text}");
}
