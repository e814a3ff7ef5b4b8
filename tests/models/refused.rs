//! Whole models refuse what they cannot do.

use std::fs;

use candle_blocks::{
    Checkpoint, CheckpointOptions, Error, Precision, Weights,
    candle_core::{DType, Device, Tensor},
    model::{Model, ModelInput},
};

use crate::{
    cpu_only::cpu_only,
    device::device,
    message::message,
    said::assert_says,
    weights::{is_present, weights},
};

fn opened(name: &str) -> [Model; 2] {
    let checkpoint = Checkpoint::open(weights(name)).unwrap();
    [
        checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .model()
            .unwrap(),
        checkpoint
            .load(Weights::Packed(Precision::F32))
            .model()
            .unwrap(),
    ]
}

fn ids(ids: &[i64]) -> Tensor {
    Tensor::new(ids, &device()).unwrap().unsqueeze(0).unwrap()
}

#[test]
fn a_token_beyond_the_table_is_refused_with_its_place() {
    for model in opened("tiny-bert") {
        for wrong in [11, -1] {
            let refused = message(model.forward(&ModelInput::tokens(&ids(&[4, 5, wrong]))));
            let place = format!("holds {wrong} at [0, 2]");
            assert_says(refused, &["input_ids", &place, "expected 0 to 10"]);
        }
        let types = ids(&[0, 2, 0]);
        let input = ModelInput::tokens(&ids(&[4, 5, 6])).with_types(&types);
        let refused = message(model.forward(&input));
        assert_says(refused, &["token_type_ids", "holds 2 at [0, 1]"]);
    }
}

#[test]
fn a_text_longer_than_the_positions_is_refused() {
    for (name, n_positions) in [("tiny-bert", 16), ("tiny-gpt2", 16)] {
        for model in opened(name) {
            let text = vec![5; n_positions + 1];
            let fits = ModelInput::tokens(&ids(&text[1..]));
            model.forward(&fits).unwrap();
            let refused = message(model.forward(&ModelInput::tokens(&ids(&text))));
            let limit = format!("model's {n_positions} positions");
            assert_says(refused, &["input_ids", &limit, "shorten the text"]);
        }
    }
}

#[test]
fn a_model_without_a_head_predicts_no_token() {
    for model in opened("tiny-gpt2") {
        let mut cache = model.new_cache();
        let input = ModelInput::tokens(&ids(&[4, 5]));
        assert!(model.forward(&input).unwrap().logits.is_none());
        let refused = message(model.next_logits(&input, &mut cache));
        assert_says(refused, &["no head for the next token", "base model"]);
    }
}

#[test]
fn unread_keys_are_named() {
    for model in opened("tiny-bert") {
        let refused = message(model.forward(&ModelInput::default()));
        assert_says(refused, &["input_ids", "missing"]);
        let numbers = Tensor::zeros((1, 3), DType::F32, &device()).unwrap();
        let refused = message(model.forward(&ModelInput::tokens(&numbers)));
        assert_says(refused, &["input_ids", "F32", "expected integers"]);
        let mask = ids(&[1, 1]);
        let input = ModelInput::tokens(&ids(&[4, 5, 6])).with_mask(&mask);
        model.forward(&input).unwrap_err();
    }
}

#[test]
fn a_family_without_embeddings_has_no_whole_model_but_its_blocks() {
    if !is_present("families") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("families/torch_encoder")).unwrap();
    checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let refused = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .model();
    assert!(matches!(refused, Err(Error::InvalidConfig(_))));
    assert_says(
        message(refused),
        &["torch_transformer_encoder", "hidden_states"],
    );
}

#[test]
fn labels_of_tokens_by_a_decoder_of_t5_are_refused() {
    cpu_only("config.json is read");
    if !is_present("heads") {
        return;
    }
    let source = weights("heads/t5-token_classification");
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["is_decoder"] = true.into();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    fs::write(&config, json.to_string()).unwrap();
    let opened = CheckpointOptions::default().config(config).whole();
    assert_says(message(opened.open(source)), &["is_decoder", "only false"]);
}

#[test]
fn a_label_of_a_text_whose_last_token_is_not_known_is_refused() {
    if !is_present("heads") {
        return;
    }
    let folder = weights("heads/gpt2-sequence_classification");
    let copy = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(folder.join("config.json")).unwrap();
    assert!(config.contains("\"pad_token_id\": 0"), "{config}");
    let config = config.replace("\"pad_token_id\": 0", "\"pad_token_id\": null");
    fs::write(copy.path().join("config.json"), config).unwrap();
    let weights = "model.safetensors";
    fs::copy(folder.join(weights), copy.path().join(weights)).unwrap();
    let checkpoint = Checkpoint::open(copy.path()).unwrap();
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .model()
        .unwrap();
    let input = |marks: &[i64]| ModelInput::tokens(&ids(&[4, 5, 6])).with_mask(&ids(marks));
    model.forward(&input(&[0, 1, 1])).unwrap();
    let refused = message(model.forward(&input(&[1, 1, 0])));
    assert_says(refused, &["attention_mask", "pad_token_id"]);
}

#[test]
fn half_a_head_is_refused_with_the_missing_tensor() {
    if !is_present("heads") {
        return;
    }
    let folder = weights("heads/roberta-sequence_classification");
    let copy = tempfile::tempdir().unwrap();
    fs::copy(folder.join("config.json"), copy.path().join("config.json")).unwrap();
    let tensors = candle_blocks::candle_core::safetensors::load(
        folder.join("model.safetensors"),
        &Device::Cpu,
    );
    let mut tensors = tensors.unwrap();
    tensors.remove("classifier.out_proj.weight").unwrap();
    let tensors: Vec<_> = tensors.into_iter().collect();
    let path = copy.path().join("model.safetensors");
    candle_blocks::checkpoint::write::write_safetensors(path, &tensors, None).unwrap();
    let checkpoint = Checkpoint::open(copy.path()).unwrap();
    let refused = message(
        checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .model(),
    );
    assert_says(
        refused,
        &[
            "sequence_classification.output.weight",
            "classifier.out_proj.weight",
        ],
    );
}

#[test]
fn a_checkpoint_without_a_head_for_labels_has_none() {
    cpu_only("config.json is read");
    let mut cases = vec![("tiny-bert", "no head")];
    if is_present("families/gptj") {
        cases.push(("families/gptj", "causal_lm"));
    }
    for (name, found) in cases {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let refused = message(checkpoint.labels());
        assert_says(refused, &[name, "has no labels", found, "architectures"]);
    }
}
