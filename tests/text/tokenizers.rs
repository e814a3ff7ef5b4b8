//! Tokens, truncation and texts of small tokenizers with files beside them: transformers is the judge.

use std::fs;
use std::path::Path;

use candle_blocks::text::Tokenizer;
use serde_json::Value;

use crate::weights::weights;

/// The metadata of the reference file, each entry parsed.
fn reference() -> Vec<(String, Value)> {
    let bytes = fs::read(weights("reference/tokenizers.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let said = header["__metadata__"].as_object().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let json = said
        .iter()
        .filter(|(_, value)| text(value).starts_with('{'));
    json.map(|(name, value)| (name.clone(), serde_json::from_str(&text(value)).unwrap()))
        .collect()
}

/// The `tokenizer.json` of each kind.
pub fn kinds() -> Value {
    let found = reference().into_iter().find(|(name, _)| name == "kinds");
    found.unwrap().1
}

fn numbers(value: &Value) -> Vec<u32> {
    let numbers = value.as_array().unwrap().iter();
    numbers
        .map(|number| number.as_u64().unwrap() as u32)
        .collect()
}

fn write(folder: &Path, name: &str, value: &Value) {
    fs::write(folder.join(name), value.to_string()).unwrap();
}

#[test]
fn tokens_and_texts_are_those_of_transformers_for_every_key_and_file() {
    let reference = reference();
    let entry = |name: &str| {
        let found = reference.iter().find(|(key, _)| key == name);
        &found.unwrap().1
    };
    let (kinds, inputs) = (entry("kinds"), entry("inputs"));
    let mut wrong = Vec::new();
    let mut n_cases = 0;
    for (name, case) in reference
        .iter()
        .filter(|(_, case)| case.get("kind").is_some())
    {
        n_cases += 1;
        let folder = tempfile::tempdir().unwrap();
        let kind = case["kind"].as_str().unwrap();
        write(folder.path(), "tokenizer.json", &kinds[kind]);
        for (file, value) in case["files"].as_object().unwrap() {
            write(folder.path(), file, value);
        }
        let mut tokenizer = Tokenizer::open(folder.path()).unwrap();
        let results = case["results"].as_array().unwrap();
        let encoded = match case["limit"].as_u64() {
            None => {
                let texts = inputs["texts"].as_array().unwrap().iter();
                tokenizer.encode_all(texts.map(|text| text.as_str().unwrap()))
            }
            Some(limit) => {
                tokenizer.truncate(limit as usize).unwrap();
                let pairs = inputs["pairs"].as_array().unwrap().iter();
                let text = |pair: &Value, at: usize| pair[at].as_str().unwrap().to_string();
                tokenizer.encode_all(pairs.map(|pair| (text(pair, 0), text(pair, 1))))
            }
        };
        for (index, (ours, theirs)) in encoded.unwrap().iter().zip(results).enumerate() {
            let decoded = tokenizer.decode(&ours.ids).unwrap();
            let types = numbers(&theirs[1]);
            let is_same = ours.ids == numbers(&theirs[0])
                && (types.is_empty() || ours.types == types)
                && decoded == theirs[2].as_str().unwrap();
            if !is_same {
                wrong.push(format!(
                    "{name}, input {index}: {ours:?} {decoded:?}, expected {theirs}"
                ));
            }
        }
    }
    assert!(n_cases > 50, "{n_cases} cases");
    assert!(
        wrong.is_empty(),
        "{} of {n_cases} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn a_pointer_of_git_lfs_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    fs::write(folder.path().join("tokenizer.json"), pointer).unwrap();
    let error = Tokenizer::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("Git LFS pointer") && error.contains("git lfs pull"),
        "{error}"
    );
}
