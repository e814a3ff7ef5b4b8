//! A new head on pretrained blocks, and adapters on a whole model.

use std::{fs, path::Path};

use candle_blocks::{
    Architecture, Checkpoint, Weights,
    candle_core::{DType, Tensor},
    model::{Model, ModelInput},
    ops,
    train::{AdamW, AdamWConfig, Fresh, Lora, LoraConfig, ParameterGroup},
};
use serde_json::{Value, json};

use crate::{
    device::device, message::message, numbers::bits, said::assert_says, same::assert_same,
    weights::weights,
};

/// Writes the configuration of tiny-bert as a classifier with three labels.
fn write_classifier(folder: &Path) {
    let text = fs::read_to_string(weights("tiny-bert/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["architectures"] = json!(["BertForSequenceClassification"]);
    config["id2label"] = json!({"0": "a", "1": "b", "2": "c"});
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

fn input() -> ModelInput {
    let ids = Tensor::new(&[[1u32, 5, 7, 2], [3, 4, 2, 0]], &device()).unwrap();
    let mask = Tensor::new(&[[1u8, 1, 1, 1], [1, 1, 1, 0]], &device()).unwrap();
    ModelInput::tokens(&ids).with_mask(&mask)
}

fn logits(model: &Model) -> Tensor {
    model.forward(&input()).unwrap().logits.unwrap()
}

#[test]
fn a_new_head_starts_fresh_on_the_values_of_the_checkpoint_and_is_saved_with_them() {
    let folder = tempfile::tempdir().unwrap();
    write_classifier(folder.path());
    let architecture = Architecture::open(folder.path()).unwrap();
    let (dtype, device) = (DType::F32, device());
    let fresh = Fresh::new(architecture.initialization.clone(), 42, dtype, &device);
    let pretrained = Checkpoint::open(weights("tiny-bert")).unwrap();
    let loader = pretrained.load(Weights::Dense(dtype, &device));
    assert_says(
        message(fresh.copy_from(&loader)),
        &[
            "tiny-bert",
            "none of the 0 variables",
            "create the layers first",
        ],
    );

    let model = Model::new(architecture.model_config().unwrap(), fresh.var_builder()).unwrap();
    let before = logits(&model);
    let new = fresh.copy_from(&loader).unwrap();
    assert_eq!(
        new,
        [
            "sequence_classification.output.weight",
            "sequence_classification.output.bias"
        ]
    );
    // `parity.rs` compares this model with PyTorch.
    let of_checkpoint = loader.model().unwrap().forward(&input()).unwrap();
    let copied = model.forward(&input()).unwrap();
    assert_same(
        &copied.last_hidden_state,
        &of_checkpoint.last_hidden_state,
        "blocks",
    );
    assert_same(
        &copied.pooler_output.unwrap(),
        &of_checkpoint.pooler_output.unwrap(),
        "pooler",
    );
    assert_ne!(bits(&logits(&model)), bits(&before));

    let labels = Tensor::new(&[2u32, 0], &device).unwrap();
    let groups = ParameterGroup::decaying_matrices(fresh.parameters(), 0.01);
    let mut optimizer = AdamW::new(groups, AdamWConfig::default()).unwrap();
    let loss = |model: &Model| ops::cross_entropy(&logits(model), &labels).unwrap();
    let first = loss(&model);
    let gradients = optimizer.backward(&first).unwrap();
    optimizer.update(&gradients, 1.0).unwrap();
    let second = loss(&model).to_scalar::<f32>().unwrap();
    assert!(second < first.to_scalar::<f32>().unwrap());
    let saved = folder.path().join("trained");
    architecture.save(&saved, fresh.parameters(), &[]).unwrap();
    let opened = Checkpoint::open(&saved)
        .unwrap()
        .load(Weights::Dense(dtype, &device))
        .model()
        .unwrap();
    assert_same(&logits(&opened), &logits(&model), "saved and opened");
}

#[test]
fn values_of_another_model_are_not_copied() {
    let architecture = Architecture::open(weights("tiny-bert")).unwrap();
    let fresh = Fresh::new(
        architecture.initialization.clone(),
        42,
        DType::F32,
        &device(),
    );
    fresh.stack(&architecture.config).unwrap();
    let other = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let loader = other.load(Weights::Dense(DType::F32, &device()));
    assert_says(
        message(fresh.copy_from(&loader)),
        &[
            "tiny-gpt2/model.safetensors",
            "has shape [40, 24], expected [52, 20]",
        ],
    );
}

#[test]
fn adapters_on_the_blocks_of_a_model_train_under_its_head() {
    let folder = tempfile::tempdir().unwrap();
    write_classifier(folder.path());
    let architecture = Architecture::open(folder.path()).unwrap();
    let fresh = Fresh::new(
        architecture.initialization.clone(),
        42,
        DType::F32,
        &device(),
    );
    let mut model = Model::new(architecture.model_config().unwrap(), fresh.var_builder()).unwrap();
    let plain = logits(&model);
    let config = LoraConfig::new(4, 8.0, &["attention.query", "feed_forward.down"]);
    let lora = Lora::attach(model.stack_mut(), config, 1).unwrap();
    assert_same(&logits(&model), &plain, "with fresh adapters");
    for (_, variable) in lora.parameters().iter() {
        let ones = variable.ones_like().unwrap();
        variable.set(&(ones * 0.1).unwrap()).unwrap();
    }
    let adapted = logits(&model);
    assert_ne!(bits(&adapted), bits(&plain));
    lora.merge(model.stack_mut()).unwrap();
    let difference = (logits(&model) - adapted)
        .unwrap()
        .abs()
        .unwrap()
        .max_all()
        .unwrap();
    assert!(difference.to_scalar::<f32>().unwrap() < 1e-5);
}
