//! Files that hold the blocks below a head: under the head's prefix, and beside its own tensors.
//!
//! Names are those that transformers 5.23's classes for the task write.

use std::fs;

use candle_blocks::{
    Checkpoint,
    candle_core::{DType, Device, Tensor},
    checkpoint::write::write_safetensors,
};

use serde_json::json;

use crate::{
    message::message,
    numbers::bits,
    said::assert_says,
    trained::trained,
    weights::{is_present, weights},
};

/// A committed checkpoint, the prefix in it, the prefix that a head's class writes, and the head's tensors.
const HEADS: &[(&str, &str, &str, &[&str])] = &[
    ("families/electra", "", "", &["generator_lm_head.bias"]),
    (
        "families/llama",
        "model.",
        "transformer.",
        &["qa_outputs.weight"],
    ),
    (
        "families/qwen2",
        "model.",
        "transformer.",
        &["qa_outputs.weight"],
    ),
    (
        "families/qwen3_moe",
        "model.",
        "transformer.",
        &["qa_outputs.weight"],
    ),
    (
        "families/nomic_bert",
        "",
        "nomic_bert.",
        &["classifier.weight", "cls.predictions.bias"],
    ),
    (
        "tiny-gpt2",
        "",
        "transformer.",
        &[
            "multiple_choice_head.summary.weight",
            "classifier.weight",
            "qa_outputs.weight",
        ],
    ),
];

#[test]
fn blocks_are_found_below_every_head() {
    for (name, old, new, head) in HEADS {
        if !is_present(name) {
            continue;
        }
        let original = Checkpoint::open(weights(name)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(
            weights(name).join("config.json"),
            folder.path().join("config.json"),
        )
        .unwrap();
        let mut tensors = Vec::new();
        for tensor in original.files().names() {
            let renamed = match tensor.strip_prefix(old) {
                Some(local) => format!("{new}{local}"),
                None => tensor.to_string(),
            };
            tensors.push((renamed, original.files().read(tensor).unwrap()));
        }
        for tensor in *head {
            let values = Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap();
            tensors.push((tensor.to_string(), values));
        }
        write_safetensors(folder.path().join("model.safetensors"), &tensors, None).unwrap();
        let headed = Checkpoint::open(folder.path()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let read = |checkpoint: &Checkpoint| {
            let parameters = trained(checkpoint, DType::F32).into_iter();
            let with_bits = parameters.map(|(role, variable)| (role, bits(&variable)));
            with_bits.collect::<Vec<_>>()
        };
        assert_eq!(read(&headed), read(&original), "{name}");
    }
}

/// transformers 5.23 takes names of any type, and prints them as Python does.
#[test]
fn labels_may_be_other_values_than_strings() {
    if !is_present("heads") {
        return;
    }
    let source = weights("heads/bert-sequence_classification");
    let folder = tempfile::tempdir().unwrap();
    let to = |name: &str| folder.path().join(name);
    fs::copy(source.join("model.safetensors"), to("model.safetensors")).unwrap();
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut labels = |names: serde_json::Value| {
        config["id2label"] = names;
        fs::write(to("config.json"), config.to_string()).unwrap();
        Checkpoint::open(folder.path()).unwrap().labels()
    };
    for (names, expected) in [
        (json!({"0": 0, "1": 1, "2": -1}), ["0", "1", "-1"]),
        (
            json!({"0": true, "1": 1.5, "2": null}),
            ["True", "1.5", "None"],
        ),
        (json!({"0": "a", "1": "", "2": 7}), ["a", "", "7"]),
    ] {
        assert_eq!(labels(names).unwrap(), expected);
    }
    let said = message(labels(json!({"0": ["a"], "1": "b", "2": "c"})));
    assert_says(said, &["id2label", "label \"0\"", "expected a string"]);
}
