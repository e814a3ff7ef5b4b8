//! `candle-blocks run` spares what it reads, and says where results are not finite.

use std::{fs, path::Path};

use candle_blocks::candle_core::{DType, Tensor};
use candle_blocks::checkpoint::write::write_safetensors;

use crate::{
    numbers::numbers,
    said::assert_says,
    scratch::{Scratch, answer, load, program},
    weights::{is_present, weights},
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

/// A table of ages, which code of one's own adds to BERT's three. transformers reports it as unexpected.
#[test]
fn an_embedding_that_no_part_of_the_model_reads_is_named_in_a_note() {
    let scratch = Scratch::of("tiny-bert");
    let before = scratch.run(&[]);
    before.assert_status(0);
    assert!(!before.stderr.contains("reads"), "{}", before.stderr);
    let expected = load(&scratch.output());
    scratch.change_weights(|tensors| {
        let table = Tensor::ones((4, 3), DType::F32, &candle_blocks::candle_core::Device::Cpu);
        tensors.insert(
            "embeddings.age_embeddings.weight".to_string(),
            table.unwrap(),
        );
    });
    let answer = scratch.run(&[]);
    answer.assert_status(0);
    let note = "note: 1 tensor(s) that no part of the model reads are left out: embeddings.age_embeddings.weight";
    assert_says(&answer.stderr, &[note]);
    let found = load(&scratch.output());
    for (name, expected) in &expected {
        assert_eq!(numbers(&found[name]), numbers(expected), "{name}");
    }
}

#[test]
fn tensors_that_the_model_does_not_know_are_left_out_if_the_option_says_so() {
    let scratch = Scratch::of("tiny-bert");
    scratch.run(&[]).assert_status(0);
    let expected = load(&scratch.output());
    scratch.change_weights(|tensors| {
        let weight = Tensor::ones(3, DType::F32, &candle_blocks::candle_core::Device::Cpu);
        tensors.insert("loss_fct.weight".to_string(), weight.unwrap());
    });
    scratch
        .run(&[])
        .assert_refused(&["loss_fct.weight", "give `--allow-unused` to leave them out"]);
    let answer = scratch.run(&["--allow-unused"]);
    answer.assert_status(0);
    assert_says(
        &answer.stderr,
        &["note: 1 tensor(s) that bert does not know are left out: loss_fct.weight"],
    );
    for (name, tensor) in load(&scratch.output()) {
        assert_eq!(numbers(&tensor), numbers(&expected[&name]), "{name}");
    }
    // Fewer layers than the file has.
    let config = fs::read_to_string(scratch.config()).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["num_hidden_layers"] = 1.into();
    fs::write(scratch.config(), config.to_string()).unwrap();
    scratch
        .run(&[])
        .assert_refused(&["encoder.layer.1.", "`--allow-unused`"]);
    let answer = scratch.run(&["--allow-unused"]);
    answer.assert_status(0);
    assert_says(&answer.stderr, &["encoder.layer.2.output.LayerNorm.bias"]);
}

#[test]
fn a_causal_model_without_its_head_gives_no_logits_and_a_note_says_so() {
    if !is_present("families/llama") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let of = weights("families/llama");
    let mut tensors = load(&of.join("model.safetensors"));
    tensors.remove("lm_head.weight").unwrap();
    let tensors: Vec<_> = tensors.into_iter().collect();
    write_safetensors(path("model.safetensors"), &tensors, None).unwrap();
    let config = fs::read_to_string(of.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["tie_word_embeddings"] = false.into();
    fs::write(path("config.json"), config.to_string()).unwrap();
    let ids = Tensor::new(&[[1u32, 2, 3]], &candle_blocks::candle_core::Device::Cpu).unwrap();
    write_safetensors(path("ids"), &[("input_ids".to_string(), ids)], None).unwrap();
    let [model, input, output] = ["", "ids", "out"].map(|name| path(name).display().to_string());
    let arguments = [
        "run", "--model", &model, "--input", &input, "--output", &output,
    ];
    let answer = answer(program().args(arguments));
    answer.assert_status(0);
    assert_says(&answer.stderr, &["note: there are no logits", "causal_lm"]);
    assert!(!load(Path::new(&output)).contains_key("logits"));
}

/// PyTorch writes NaN too; here a note says so.
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

#[test]
fn a_note_names_the_inputs_that_the_model_does_not_read() {
    let scratch = Scratch::of("tiny-bert");
    let note = "the model does not read";
    let answer = scratch.run(&[]);
    assert!(!answer.stderr.contains(note), "{answer:?}");
    let ones = Tensor::ones((2, 3), DType::F32, &candle_blocks::candle_core::Device::Cpu).unwrap();
    scratch.change_input(|tensors| {
        for name in ["attention_maks", "pixel_values", "encoder_hidden_states"] {
            tensors.insert(name.to_string(), ones.unsqueeze(0).unwrap());
        }
    });
    let answer = scratch.run(&[]);
    answer.assert_status(0);
    // Beside hidden states, the names of a whole model's inputs are those of the file's origin.
    let said = format!("{note} encoder_hidden_states, attention_maks");
    assert_says(&answer.stderr, &["input.safetensors", &said]);

    scratch.change_input(|tensors| tensors.retain(|name, _| name != "hidden_states"));
    let ids = Tensor::new(&[[1u32, 2, 3]], &candle_blocks::candle_core::Device::Cpu).unwrap();
    scratch.change_input(|tensors| {
        tensors.clear();
        for name in ["input_ids", "decoder_input_ids", "position_ids"] {
            tensors.insert(name.to_string(), ids.clone());
        }
        tensors.insert("pixel_values".to_string(), ones.clone());
        tensors.insert("labels".to_string(), ids.clone());
    });
    let answer = scratch.run(&[]);
    answer.assert_status(0);
    let said = format!("{note} pixel_values, decoder_input_ids, labels");
    assert_says(&answer.stderr, &[&said]);
}
