//! `candle-blocks run` spares what it reads, and says where results are not finite.

use std::fs;

use candle_blocks::candle_core::{DType, Tensor};

use crate::{
    numbers::numbers,
    said::assert_says,
    scratch::{Scratch, load},
    weights::weights,
};

#[test]
fn a_config_json_that_the_run_reads_is_not_replaced() {
    let scratch = Scratch::of("tiny-bert");
    let elsewhere = scratch.path("elsewhere.json");
    fs::copy(scratch.config(), &elsewhere).unwrap();
    for (path, flags) in [
        (scratch.config(), vec![]),
        (
            elsewhere.clone(),
            vec!["--config", elsewhere.to_str().unwrap()],
        ),
    ] {
        let before = fs::read(&path).unwrap();
        let output = ["--output", path.to_str().unwrap()];
        let answer = scratch.run(&[&output[..], &flags[..]].concat());
        answer.assert_refused(&["--output", "a file that the run reads"]);
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}

#[test]
fn a_family_file_that_the_run_reads_is_not_replaced() {
    let scratch = Scratch::of("tiny-bert");
    let family = scratch.path("family.json");
    fs::copy(weights("../examples/family.json"), &family).unwrap();
    let path = family.to_str().unwrap();
    let answer = scratch.run(&["--family", path, "--output", path]);
    answer.assert_refused(&["--output", "a file that the run reads"]);
}

/// As PyTorch writes it, too; but said.
#[test]
fn nan_is_written_and_a_note_says_where_it_comes_from() {
    let scratch = Scratch::of("tiny-bert");
    let clean = scratch.run(&[]);
    clean.assert_status(0);
    assert_eq!(clean.stderr, "");

    let root = |tensor: &Tensor| (tensor - 1e9).unwrap().sqrt().unwrap();
    let name = "encoder.layer.1.intermediate.dense.bias";
    scratch.change_weights(|tensors| {
        let bias = root(&tensors[name]);
        tensors.insert(name.to_string(), bias);
    });
    let answer = scratch.run(&[]);
    answer.assert_status(0);
    let first = "layers.1.feed_forward.output";
    assert_says(&answer.stderr, &[&format!("note: {first} "), name]);
    assert!(!answer.stderr.contains("hidden_states"), "{answer:?}");
    let stages = load(&scratch.output());
    assert!(numbers(&stages[first]).iter().all(|v| v.is_nan()));
    assert_eq!(stages[first].dtype(), DType::F32);

    scratch.change_input(|tensors| {
        let x = root(&tensors["hidden_states"]);
        tensors.insert("hidden_states".to_string(), x);
    });
    let answer = scratch.run(&[]);
    answer.assert_status(0);
    assert_says(&answer.stderr, &["layers.0.", "the input hidden_states"]);
}

#[test]
fn no_shard_and_no_index_is_replaced() {
    let scratch = Scratch::of("tiny-bert");
    scratch.shard();
    let shard = scratch.path("model/model-00002-of-00002.safetensors");
    for path in [shard, scratch.index(), scratch.input()] {
        let before = fs::read(&path).unwrap();
        let answer = scratch.run(&["--output", path.to_str().unwrap()]);
        answer.assert_refused(&["--output", "a file that the run reads"]);
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}

#[test]
fn gradients_need_a_fixture_that_has_some() {
    let scratch = Scratch::of("tiny-bert");
    scratch.verify(&["--backward"]).assert_status(0);
    scratch.change_input(|tensors| tensors.retain(|name, _| !name.starts_with("grads.")));
    let answer = scratch.verify(&["--backward"]);
    answer.assert_status(1);
    assert_says(&answer.stdout, &["FAIL", "no gradients"]);
}
