//! A new head on pretrained blocks, and adapters on a whole model.

use std::fs;

use candle_blocks::{
    Architecture, Checkpoint, Weights,
    candle_core::{DType, Tensor},
    config::{HeadTask, Initialization},
    model::{Model, ModelInput, NewHead},
    ops,
    train::{AdamW, AdamWConfig, Fresh, Lora, LoraConfig, ParameterGroup},
};
use serde_json::{Value, json};

use crate::{
    device::device, message::message, numbers::bits, said::assert_says, same::assert_same,
    weights::weights,
};

const LABELS: [&str; 3] = ["a", "b", "c"];

/// Puts a head for three labels on the blocks of tiny-bert.
fn head(task: HeadTask) -> candle_blocks::Result<NewHead> {
    let pretrained = Checkpoint::open(weights("tiny-bert")).unwrap();
    NewHead::new(&pretrained, task, &LABELS, 42, DType::F32, &device())
}

fn classifier() -> NewHead {
    head(HeadTask::SequenceClassification).unwrap()
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
    let head = classifier();
    assert_eq!(
        head.new_parameters(),
        [
            "sequence_classification.output.weight",
            "sequence_classification.output.bias"
        ]
    );
    // `parity.rs` compares this model with PyTorch.
    let pretrained = Checkpoint::open(weights("tiny-bert")).unwrap();
    let (dtype, device) = (DType::F32, device());
    let loader = pretrained.load(Weights::Dense(dtype, &device));
    let of_checkpoint = loader.model().unwrap().forward(&input()).unwrap();
    let copied = head.model().forward(&input()).unwrap();
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

    let labels = Tensor::new(&[2u32, 0], &device).unwrap();
    let groups = ParameterGroup::decaying_matrices(head.parameters(), 0.01);
    let mut optimizer = AdamW::new(groups, AdamWConfig::default()).unwrap();
    let loss = |model: &Model| ops::cross_entropy(&logits(model), &labels).unwrap();
    let first = loss(head.model());
    let gradients = optimizer.backward(&first).unwrap();
    optimizer.update(&gradients, 1.0).unwrap();
    let second = loss(head.model()).to_scalar::<f32>().unwrap();
    assert!(second < first.to_scalar::<f32>().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("trained");
    head.save(&saved).unwrap();
    let opened = Checkpoint::open(&saved).unwrap();
    assert_eq!(opened.labels().unwrap(), LABELS);
    let model = opened.load(Weights::Dense(dtype, &device)).model().unwrap();
    assert_same(&logits(&model), &logits(head.model()), "saved and opened");
    let config = fs::read_to_string(saved.join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    // As `save_pretrained` of transformers writes them.
    assert_eq!(
        config["architectures"],
        json!(["BertForSequenceClassification"])
    );
    assert_eq!(config["id2label"], json!({"0": "a", "1": "b", "2": "c"}));
    assert_eq!(config["label2id"], json!({"a": 0, "b": 1, "c": 2}));
}

#[test]
fn a_head_that_the_checkpoint_has_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("first");
    let first = classifier();
    first.save(&saved).unwrap();
    let pretrained = Checkpoint::open(&saved).unwrap();
    for labels in [&LABELS[..], &LABELS[..2]] {
        let task = HeadTask::SequenceClassification;
        let second = NewHead::new(&pretrained, task, labels, 7, DType::F32, &device()).unwrap();
        assert_eq!(second.new_parameters(), first.new_parameters());
        let output = logits(second.model());
        assert_eq!(output.dim(1).unwrap(), labels.len());
        assert_ne!(bits(&output), bits(&logits(first.model())));
    }
}

#[test]
fn heads_that_a_family_lacks_are_refused_by_name() {
    assert_says(
        message(head(HeadTask::ImageClassification)),
        &[
            "image_classification: the family bert has no head for this task; it has heads for",
            "sequence_classification",
        ],
    );
    let fresh = Fresh::new(Initialization::torch(), 42, DType::F32, &device());
    let pretrained = Checkpoint::open(weights("tiny-bert")).unwrap();
    assert_says(
        message(fresh.copy_from(&pretrained.load(Weights::Dense(DType::F32, &device())))),
        &[
            "tiny-bert",
            "none of the 0 variables",
            "create the layers first",
        ],
    );
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
    let mut head = classifier();
    let model = head.model_mut();
    let plain = logits(model);
    let config = LoraConfig::new(4, 8.0, &["attention.query", "feed_forward.down"]);
    let lora = Lora::attach(model.stack_mut(), config, 1).unwrap();
    assert_same(&logits(model), &plain, "with fresh adapters");
    for (_, variable) in lora.parameters().iter() {
        let ones = variable.ones_like().unwrap();
        variable.set(&(ones * 0.1).unwrap()).unwrap();
    }
    let adapted = logits(model);
    assert_ne!(bits(&adapted), bits(&plain));
    lora.merge(model.stack_mut()).unwrap();
    let difference = (logits(model) - adapted)
        .unwrap()
        .abs()
        .unwrap()
        .max_all()
        .unwrap();
    assert!(difference.to_scalar::<f32>().unwrap() < 1e-5);
}
