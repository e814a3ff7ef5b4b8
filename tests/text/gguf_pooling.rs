//! Vectors of texts pooled as a GGUF file says: those of llama.cpp, and of transformers.

use std::fs;
use std::path::PathBuf;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::model::ModelInput;
use candle_blocks::text::{Pooling, TextClassifier, TextOptions, Tokenizer};
use candle_blocks::{CheckpointOptions, Precision, Weights};
use serde_json::Value;
use tempfile::TempDir;

use crate::gguf_file::{numbers, text, texts, whole, wholes, with_keys};
use crate::weights::{is_present, weights};

/// Pooling types by their names in the expected results, with their ids in GGUF.
const TYPES: [(&str, u32, Pooling); 3] = [
    ("mean", 1, Pooling::Mean),
    ("cls", 2, Pooling::Cls),
    ("last", 3, Pooling::LastToken),
];

/// Returns a copy of a committed model with another pooling type.
fn with_type(name: &str, value: Vec<u8>) -> (TempDir, PathBuf) {
    let bytes = fs::read(weights(&format!("gguf-pooling/{name}.gguf"))).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let key = format!("{name}.pooling_type");
    fs::write(&path, with_keys(bytes, &[(&key, value)])).unwrap();
    (folder, path)
}

/// Returns the largest difference between two tables of vectors.
fn off(found: &[Vec<f32>], expected: &Value) -> f64 {
    let expected: Vec<Vec<f64>> = serde_json::from_value(expected.clone()).unwrap();
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    pairs.fold(0.0, |most, (a, b)| (f64::from(*a) - b).abs().max(most))
}

#[test]
fn vectors_are_pooled_as_the_file_says() {
    if !is_present("gguf-pooling") {
        return;
    }
    let text = fs::read_to_string(weights("gguf-pooling/expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let given: Vec<String> = serde_json::from_value(expected["texts"].clone()).unwrap();
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    // llama.cpp reads BERT's GELU from a table of f16.
    for (name, of_llama_cpp) in [("bert", 5e-4), ("qwen3", 2e-6)] {
        let of_model = &expected[name];
        for (pooling, number, kind) in TYPES {
            let (_folder, path) = with_type(name, whole(number));
            let tokenizer = Tokenizer::open(&path).unwrap();
            let ids = tokenizer.encode_all(given.iter().copied()).unwrap();
            let ids: Vec<Vec<u32>> = ids.into_iter().map(|text| text.ids).collect();
            assert_eq!(
                serde_json::to_value(ids).unwrap(),
                of_model["ids"],
                "{name}"
            );
            for options in [
                TextOptions::default(),
                TextOptions::default().device(DType::F32, &Device::Cpu),
            ] {
                let embedder = options.embedder(&path).unwrap();
                assert_eq!(embedder.pooling(), [kind], "{name}");
                let found = embedder.embed(&given).unwrap().to_vec2::<f32>().unwrap();
                let [a, b] =
                    ["transformers", "llama.cpp"].map(|by| off(&found, &of_model[pooling][by]));
                assert!(a < 2e-6, "{name} {pooling}: {a:e} from transformers");
                assert!(b < of_llama_cpp, "{name} {pooling}: {b:e} from llama.cpp");
                // No other pooling passes for it.
                for (other, ..) in TYPES.iter().filter(|(other, ..)| *other != pooling) {
                    let far = off(&found, &of_model[*other]["transformers"]);
                    assert!(far > 0.05, "{name} {pooling}: {far:e} from {other}");
                }
            }
        }
    }
}

#[test]
fn a_file_without_a_pooling_for_vectors_is_refused_unless_one_is_given() {
    if !is_present("gguf-pooling") {
        return;
    }
    const UNSAID: u32 = u32::MAX; // -1
    let signed = |number: u32| [5u32.to_le_bytes(), number.to_le_bytes()].concat();
    for (value, reason) in [
        (whole(0), "its pooling_type names none"),
        (signed(UNSAID), "its pooling_type names none"),
        (whole(4), "\"qwen3.pooling_type\": is 4"),
        (whole(9), "\"qwen3.pooling_type\": is 9"),
    ] {
        let (_folder, path) = with_type("qwen3", value);
        let refused = TextOptions::default().embedder(&path).unwrap_err();
        let message = refused.to_string();
        assert!(
            message.contains(reason) && message.contains("model.gguf"),
            "{message}"
        );
        let options = TextOptions::default().pooling([Pooling::LastToken]);
        let embedder = options.embedder(&path).unwrap();
        assert_eq!(embedder.pooling(), [Pooling::LastToken]);
    }
}

#[test]
fn a_reranker_scores_pairs_as_llama_cpp_does() {
    if !is_present("gguf-pooling") {
        return;
    }
    let text = fs::read_to_string(weights("gguf-pooling/rank.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let pairs: Vec<(String, String)> = serde_json::from_value(expected["pairs"].clone()).unwrap();
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(a, b)| (&a[..], &b[..])).collect();
    let path = weights("gguf-pooling/bert-rank.gguf");
    let ranker = TextClassifier::open(&path).unwrap();
    let found = ranker.classify_pairs(&pairs).unwrap();
    let logits: Vec<Vec<f32>> = found.iter().map(|scores| scores.logits.clone()).collect();
    let far = off(&logits, &expected["bert-rank"]["scores"]);
    // llama.cpp reads GELU from a table of f16.
    assert!(far < 5e-4, "{far:e}");
    // A single label's score is the logit's sigmoid, as from safetensors.
    assert!((found[0].scores[0] - 1.0 / (1.0 + (-logits[0][0]).exp())).abs() < 1e-6);
    let refused = TextOptions::default()
        .embedder(&path)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("\"bert.pooling_type\": is 4"), "{refused}");

    let open = CheckpointOptions::default().whole();
    let checkpoint = open
        .open(weights("gguf-pooling/modern-bert-rank.gguf"))
        .unwrap();
    assert_eq!(checkpoint.labels().unwrap(), ["no", "yes"]);
    let model = checkpoint
        .load(Weights::Packed(Precision::F32))
        .model()
        .unwrap();
    let ids: Vec<Vec<u32>> = serde_json::from_value(expected["ids"].clone()).unwrap();
    let ids = Tensor::new(ids, &Device::Cpu).unwrap();
    let logits = model
        .forward(&ModelInput::tokens(&ids))
        .unwrap()
        .logits
        .unwrap();
    let far = off(
        &logits.to_vec2::<f32>().unwrap(),
        &expected["modern-bert-rank"]["scores"],
    );
    assert!(far < 2e-2, "{far:e}");
}

#[test]
fn a_reranker_without_its_pooler_is_refused_with_a_cure() {
    if !is_present("gguf-pooling") {
        return;
    }
    let bytes = fs::read(weights("gguf-pooling/bert-rank.gguf")).unwrap();
    let text = "cls.weight".as_bytes();
    let at = bytes
        .windows(text.len())
        .position(|found| found == text)
        .unwrap();
    let mut changed = bytes.clone();
    changed[at..at + 3].copy_from_slice(b"xyz");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, changed).unwrap();
    let refused = TextClassifier::open(&path).unwrap_err().to_string();
    assert!(
        refused.contains("cls.weight") && refused.contains("safetensors"),
        "{refused}"
    );
    // Qwen 3's rerankers.
    let (_folder, path) = with_type("qwen3", whole(4));
    let refused = TextClassifier::open(&path).unwrap_err().to_string();
    assert!(
        refused.contains("ranks pairs") && refused.contains("safetensors"),
        "{refused}"
    );
}

#[test]
fn an_embedder_notes_what_is_not_packed_as_it_is_stored() {
    if !is_present("gguf") {
        return;
    }
    let tokens: Vec<String> = (0..40u8)
        .map(|i| char::from(b'A' + i).to_string())
        .collect();
    let bytes = fs::read(weights("gguf/few-values/model.gguf")).unwrap();
    let bytes = with_keys(
        bytes,
        &[
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text("gpt-2")),
            ("tokenizer.ggml.tokens", texts(&tokens)),
            ("tokenizer.ggml.token_type", wholes(&[1; 40])),
            ("tokenizer.ggml.scores", numbers(&[0.0; 40])),
            ("tokenizer.ggml.merges", texts(&["0 1"])),
        ],
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let notes = |precision: Precision| {
        let options = TextOptions::default().precision(precision);
        let embedder = options.pooling([Pooling::Mean]).embedder(&path).unwrap();
        embedder.notes().to_vec()
    };
    assert_eq!(notes(Precision::F32), Vec::<String>::new());
    let noted = notes(Precision::AsStored);
    assert_eq!(noted.len(), 5, "{noted:?}");
    let says = |of: &str| {
        noted
            .iter()
            .any(|note| note.contains(of) && note.contains("as-stored"))
    };
    assert!(
        ["NVFP4", "Q1_0", "TQ1_0", "TQ2_0"].into_iter().all(says),
        "{noted:?}"
    );
}
