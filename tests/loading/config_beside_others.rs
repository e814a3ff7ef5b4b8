//! Keys in `config.json` beside other keys or tensors that say the same thing: which one counts, as in transformers 5.23.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candle_blocks::candle_core::{DType, Device, Tensor, safetensors};
use candle_blocks::model::ModelInput;
use candle_blocks::verify::{Expected, KeptRows, compare};
use candle_blocks::{Checkpoint, CheckpointOptions, Result, Weights};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::message::message;
use crate::said::assert_says;
use crate::weights::{is_present, weights};

const FREQUENCIES: &str = "esm.encoder.layer.0.attention.self.rotary_embeddings.inv_freq";

/// Copies a committed checkpoint with other keys; null removes a key.
fn copied(name: &str, keys: &[(&str, Value)]) -> TempDir {
    let (source, folder) = (
        weights(&format!("families/{name}")),
        tempfile::tempdir().unwrap(),
    );
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
    for (key, value) in keys {
        match value {
            Value::Null => drop(config.remove(*key)),
            value => drop(config.insert(key.to_string(), value.clone())),
        }
    }
    fs::write(
        folder.path().join("config.json"),
        Value::from(config).to_string(),
    )
    .unwrap();
    let file = "model.safetensors";
    fs::copy(source.join(file), folder.path().join(file)).unwrap();
    folder
}

/// Changes a copied checkpoint's tensors.
fn change(folder: &Path, change: impl FnOnce(&mut HashMap<String, Tensor>)) {
    let path = folder.join("model.safetensors");
    let mut tensors = safetensors::load(&path, &Device::Cpu).unwrap();
    change(&mut tensors);
    safetensors::save(&tensors, path).unwrap();
}

fn open(folder: &Path) -> Result<Checkpoint> {
    CheckpointOptions::default().whole().open(folder)
}

/// Returns the logits for a committed fixture's inputs.
#[track_caller]
fn logits(folder: &Path, name: &str) -> Tensor {
    let fixture = weights(&format!("families/{name}/whole.safetensors"));
    let fixture = safetensors::load(fixture, &Device::Cpu).unwrap();
    let input = ModelInput {
        attention_mask: fixture.get("attention_mask").cloned(),
        ..ModelInput::tokens(&fixture["input_ids"])
    };
    let model = open(folder)
        .unwrap()
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model()
        .unwrap();
    model.forward(&input).unwrap().logits.unwrap()
}

/// Compares the logits with PyTorch's, for a checkpoint whose changes change nothing.
#[track_caller]
fn assert_as_pytorch(folder: &Path, name: &str) {
    let fixture = weights(&format!("families/{name}/whole.safetensors"));
    let fixture = safetensors::load(fixture, &Device::Cpu).unwrap();
    let expected = Expected::new(
        fixture["logits"].clone(),
        fixture.get("logits.f64").cloned(),
    );
    let mask = fixture.get("attention_mask");
    let kept = mask.map(|mask| KeptRows::from_mask(mask).unwrap());
    let ours = logits(folder, name);
    let comparison = compare("logits", &ours, &expected.unwrap(), kept.as_ref());
    assert!(comparison.passed(), "{name}: {comparison:?}");
}

fn furthest(one: &Tensor, other: &Tensor) -> f32 {
    let apart = (one - other).unwrap().abs().unwrap();
    apart.max_all().unwrap().to_scalar().unwrap()
}

#[test]
fn the_layers_that_gpt_neo_lists_count_and_not_their_types() {
    if !is_present("families") {
        return;
    }
    let types = ("attention_types", json!([[["global"], 3]]));
    let listed = copied("gpt_neo", std::slice::from_ref(&types));
    assert_as_pytorch(listed.path(), "gpt_neo");
    let windows = |keys: &[(&str, Value)]| {
        let folder = copied("gpt_neo", keys);
        let checkpoint = open(folder.path()).unwrap();
        assert!(checkpoint.report().unread_keys.is_empty());
        let blocks = checkpoint.config().blocks.iter();
        blocks
            .map(|block| block.attention().unwrap().window)
            .collect::<Vec<_>>()
    };
    let layers = json!(["local", "global", "global"]);
    assert_eq!(
        windows(&[("attention_layers", layers)]),
        [Some(3), None, None]
    );
    let alone = [types, ("attention_layers", Value::Null)];
    assert_eq!(windows(&alone), [None, None, None]);
    for (layers, word) in [
        (json!(["local", "global"]), "lists 2 layers, expected 3"),
        (json!(["local", "global", "sparse"]), "lists \"sparse\""),
    ] {
        let folder = copied("gpt_neo", &[("attention_layers", layers)]);
        let said = message(open(folder.path()));
        assert_says(said, &["attention_layers", word]);
    }
}

#[test]
fn the_frequencies_that_an_esm_file_stores_count_and_not_its_base() {
    if !is_present("families") {
        return;
    }
    // The file's frequencies are for 10000.
    let base = ("rope_theta", json!(70.0));
    let stored = copied("esm", &[base]);
    assert_as_pytorch(stored.path(), "esm");
    // Frequencies for 100 in a file whose base is 10000, under the old name and the new one.
    let of_base = copied("esm", &[("rope_theta", json!(100.0))]);
    change(of_base.path(), |tensors| drop(tensors.remove(FREQUENCIES)));
    let expected = logits(of_base.path(), "esm");
    let of_100 = Tensor::new(&[1f32, 0.1], &Device::Cpu).unwrap();
    for name in [FREQUENCIES, "esm.rotary_embeddings.inv_freq"] {
        let folder = copied("esm", &[]);
        change(folder.path(), |tensors| {
            tensors.remove(FREQUENCIES);
            tensors.insert(name.to_string(), of_100.clone());
        });
        assert!(
            furthest(&logits(folder.path(), "esm"), &expected) < 1e-5,
            "{name}"
        );
    }
    let plain = logits(copied("esm", &[]).path(), "esm");
    assert!(furthest(&plain, &expected) > 1e-3);
    for (odd, words) in [
        (vec![1f32, 0.1, 0.01], ["has shape [3]", "[2]"]),
        (vec![1f32, 0.0], ["the frequency 0", "positive"]),
    ] {
        let folder = copied("esm", &[]);
        let odd = Tensor::new(odd, &Device::Cpu).unwrap();
        change(folder.path(), |tensors| {
            tensors.insert(FREQUENCIES.to_string(), odd);
        });
        let said = message(open(folder.path()));
        assert_says(said, &[FREQUENCIES, words[0], words[1]]);
    }
}

#[test]
fn a_saved_esm_keeps_the_frequencies_of_its_file() {
    if !is_present("families") {
        return;
    }
    let folder = copied("esm", &[("rope_theta", json!(70.0))]);
    let checkpoint = open(folder.path()).unwrap();
    let loader = checkpoint.trainable(DType::F32, &Device::Cpu).unwrap();
    drop(loader.model().unwrap());
    let saved = tempfile::tempdir().unwrap();
    let saved = saved.path().join("saved");
    checkpoint.save(&saved, loader.parameters()).unwrap();
    assert_as_pytorch(&saved, "esm");
}

/// Eager attention in transformers adds the biases twice, and its default attention once.
#[test]
fn a_key_that_the_attentions_of_transformers_follow_differently_is_named() {
    if !is_present("families") {
        return;
    }
    let keys = |name: &str, keys: &[(&str, Value)]| {
        let folder = copied(name, keys);
        open(folder.path()).unwrap().report().disputed_keys
    };
    assert_eq!(keys("falcon-rw", &[]), ["alibi (as with \"sdpa\")"]);
    assert!(keys("falcon", &[]).is_empty());
    assert!(keys("bloom", &[("alibi", json!(true))]).is_empty());
}
