//! `candle-blocks generate` starts Whisper's decoder as the keys in `generation_config.json` say, compared with
//! transformers.

use std::fs;

use candle_blocks::candle_core::{DType, Tensor};
use candle_blocks::checkpoint::write::write_safetensors;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scratch::{Answer, answer, load, program};
use crate::weights::{is_present, weights};

const WHISPER: &str = "families/whisper";

/// Returns the program's output with a `generation_config.json`.
fn generated(folder: &TempDir, features: &Tensor, config: &Value) -> Answer {
    let path = |name: &str| folder.path().join(name);
    for name in ["config.json", "model.safetensors"] {
        fs::copy(weights(WHISPER).join(name), path(name)).unwrap();
    }
    fs::write(path("generation_config.json"), config.to_string()).unwrap();
    let input = [("input_features".to_string(), features.clone())];
    write_safetensors(path("in.safetensors"), &input, None).unwrap();
    let mut command = program();
    command.arg("generate").arg("--model").arg(folder.path());
    command.arg("--input").arg(path("in.safetensors"));
    answer(command.arg("--output").arg(path("out.safetensors")))
}

/// Returns each row's tokens before the first end or padding token.
fn rows(tokens: &Tensor) -> Vec<Vec<i64>> {
    let rows = tokens.to_dtype(DType::I64).unwrap().to_vec2::<i64>();
    let cut = |row: Vec<i64>| row.into_iter().take_while(|id| ![-1, 0, 2].contains(id));
    rows.unwrap()
        .into_iter()
        .map(|row| cut(row).collect())
        .collect()
}

#[test]
fn language_task_and_times_are_those_of_transformers() {
    if !is_present(WHISPER) {
        return;
    }
    let path = weights("reference/speech.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let judged = load(&path);
    let mut n_cases = 0;
    for (name, config) in header["__metadata__"].as_object().unwrap() {
        let Some(expected) = judged.get(name) else {
            continue;
        };
        n_cases += 1;
        let config = serde_json::from_str(config.as_str().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let found = generated(&folder, &judged["input_features"], &config);
        found.assert_status(0);
        assert!(!found.stderr.contains("note: "), "{name}: {found:#?}");
        let ours = &load(&folder.path().join("out.safetensors"))["tokens"];
        assert_eq!(rows(ours), rows(expected), "{name}: {config}");
    }
    assert!(n_cases > 15, "{n_cases}");
}

#[test]
fn keys_of_speech_that_cannot_be_followed_are_refused_by_name() {
    if !is_present(WHISPER) {
        return;
    }
    let features = &load(&weights("reference/speech.safetensors"))["input_features"];
    let languages = json!({"<|en|>": 5});
    for (config, words) in [
        (
            json!({"return_timestamps": true}),
            ["return_timestamps", "remove the key"],
        ),
        (
            json!({"no_speech_threshold": 0.6}),
            ["no_speech_threshold", "remove the key"],
        ),
        (
            json!({"lang_to_id": languages, "language": ["en", "en"]}),
            ["language", "set one language"],
        ),
        (
            json!({"lang_to_id": languages, "language": "klingon"}),
            ["language", "klingon"],
        ),
        (
            json!({"lang_to_id": languages, "language": "german"}),
            ["language", "<|de|>"],
        ),
        (json!({"language": "en"}), ["language", "lang_to_id"]),
        (json!({"task": "translate"}), ["task_to_id", "translate"]),
        (
            json!({"task_to_id": {"sing": 4}, "task": "sing"}),
            ["task", "\"transcribe\""],
        ),
        (
            json!({"forced_decoder_ids": [[1, 4], [3, 5]]}),
            ["forced_decoder_ids", "expected 2"],
        ),
    ] {
        let mut config = config;
        config["decoder_start_token_id"] = json!(1);
        let folder = tempfile::tempdir().unwrap();
        generated(&folder, features, &config).assert_refused(&words);
    }
}
