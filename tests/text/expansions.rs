//! Queries that ColBERT's expansion lengthens: sentence-transformers' `MultiVectorEncoder` is the judge.

use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::text::{TextEmbedder, TextOptions};
use serde_json::Value;

use crate::folder::merge;
use crate::message::message;
use crate::reference::{Reference, assert_passed};
use crate::weights::{is_present, weights};

/// `CANDLE_BLOCKS_EXPANSIONS` names other files of this kind, such as `weights/sweep/expansions.py` writes.
fn path() -> PathBuf {
    let other = std::env::var_os("CANDLE_BLOCKS_EXPANSIONS").map(PathBuf::from);
    other.unwrap_or_else(|| weights("text/expansions"))
}

/// Returns the texts, the files beside every checkpoint, and the cases.
fn said() -> Value {
    let text = fs::read_to_string(path().with_extension("json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Writes the folder of a case.
fn write(folder: &Path, said: &Value, case: &Value) {
    let family = weights("families").join(case["family"].as_str().unwrap());
    for file in ["config.json", "model.safetensors"] {
        fs::copy(family.join(file), folder.join(file)).unwrap();
    }
    for files in [&said["files"], &case["files"]] {
        for (file, keys) in files.as_object().unwrap() {
            merge(&folder.join(file), keys);
        }
    }
}

fn vectors(embedder: &TextEmbedder, texts: &[&str]) -> candle_blocks::Result<Tensor> {
    Ok(Tensor::cat(&embedder.query_token_vectors(texts)?, 0)?)
}

#[test]
fn an_expansion_is_where_sentence_transformers_puts_it_and_is_masked_as_there() {
    if !is_present("families") {
        return;
    }
    let said = said();
    let texts = said["texts"].as_array().unwrap().iter();
    let texts: Vec<&str> = texts.map(|text| text.as_str().unwrap()).collect();
    let expected = Reference::at(&path().with_extension("safetensors"));
    let (mut comparisons, mut refused) = (Vec::new(), Vec::new());
    let cases = said["cases"].as_array().unwrap();
    for case in cases {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &said, case);
        let name = case["name"].as_str().unwrap();
        let plain = TextOptions::default().device(DType::F32, &Device::Cpu);
        for options in [TextOptions::default(), plain] {
            let found = options.embedder(folder.path());
            match found.and_then(|embedder| vectors(&embedder, &texts)) {
                Ok(found) => comparisons.push(expected.compare(name, &found)),
                Err(error) => refused.push(format!("{name}: {error}")),
            }
        }
    }
    match std::env::var_os("CANDLE_BLOCKS_EXPANSIONS") {
        Some(_) => println!("{}", refused.join("\n")),
        None => assert!(refused.is_empty(), "{}", refused.join("\n")),
    }
    assert!(comparisons.len() > 50, "{}", comparisons.len());
    assert_passed(&comparisons);
}

#[test]
fn an_expansion_that_is_not_supported_is_refused_by_its_key() {
    if !is_present("families") {
        return;
    }
    let said = said();
    let named = |name: &str| {
        let mut cases = said["cases"].as_array().unwrap().iter();
        cases
            .find(|case| case["name"].as_str().unwrap().starts_with(name))
            .unwrap()
    };
    let with = |case: &Value, file: &str, keys: Value| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &said, case);
        merge(&folder.path().join(file), &keys);
        folder
    };
    let left = named("electra left unattended fixed text");
    let middle = serde_json::json!({"padding_side": "middle"});
    let folder = with(left, "tokenizer_config.json", middle.clone());
    TextEmbedder::open(folder.path()).unwrap(); // the tokenizer's call names a side
    let folder = with(named("electra right"), "tokenizer_config.json", middle);
    let refusal = message(TextEmbedder::open(folder.path()));
    assert!(
        ["padding_side", "middle", "tokenizer_config.json"]
            .iter()
            .all(|word| refusal.contains(word)),
        "{refusal}"
    );
    let folder = with(
        named("deberta right unattended"),
        "config.json",
        serde_json::json!({}),
    );
    let narrow = TextOptions::default().device(DType::F16, &Device::Cpu);
    let embedder = narrow.embedder(folder.path()).unwrap();
    let refusal = message(vectors(&embedder, &["a"]));
    assert!(
        refusal.contains("query_expansion") && refusal.contains("f16"),
        "{refusal}"
    );
    // A query without keys: transformers computes GPT-J's attention without SDPA.
    let mut case = named("qwen3 left unattended").clone();
    case["family"] = "gptj".into();
    let folder = with(&case, "config.json", serde_json::json!({}));
    let refusal = message(TextEmbedder::open(folder.path()));
    let words = ["query_expansion", "attend", "gptj", "padding_side of left"];
    assert!(words.iter().all(|word| refusal.contains(word)), "{refusal}");
    let expansion =
        serde_json::json!({"query_expansion": {"strategy": "fixed", "attend": true, "length": 6}});
    merge(&folder.path().join("sentence_bert_config.json"), &expansion);
    TextEmbedder::open(folder.path()).unwrap();
    let folder = with(
        named("deberta right unattended"),
        "config.json",
        serde_json::json!({}),
    );
    let wider = TextOptions::default().device(DType::BF16, &Device::Cpu);
    vectors(&wider.embedder(folder.path()).unwrap(), &["a"]).unwrap();
}
