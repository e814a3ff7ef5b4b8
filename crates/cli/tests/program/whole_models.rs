//! Bad input for whole models: one line that names the file, the tensor and the cure; status 2; nothing written.

use std::fs;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::write::write_safetensors;

use crate::scratch::{Answer, Scratch, answer, program};
use crate::weights::{is_present, weights};

/// Runs the program with these tensors and a committed checkpoint.
fn run(model: &str, tensors: &[(&str, Tensor)], flags: &[&str]) -> Answer {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (
        folder.path().join("input.safetensors"),
        folder.path().join("stages.safetensors"),
    );
    let named = |(name, tensor): &(&str, Tensor)| (name.to_string(), tensor.clone());
    let tensors: Vec<_> = tensors.iter().map(named).collect();
    write_safetensors(&input, &tensors, None).unwrap();
    let mut command = program();
    command.arg("run").arg("--model").arg(weights(model));
    command.arg("--input").arg(input).arg("--output");
    let answer = answer(command.arg(&output).args(flags));
    assert_eq!(output.exists(), answer.status == Some(0));
    answer
}

fn ids<const N: usize>(rows: &[[i64; 4]; N]) -> Tensor {
    Tensor::new(rows, &Device::Cpu).unwrap()
}

#[test]
fn the_file_of_a_token_type_or_position_beyond_its_table_is_named() {
    let tokens = ("input_ids", ids(&[[1, 2, 3, 4]]));
    run("tiny-bert", &[("input_ids", ids(&[[1, 2, 3, 11]]))], &[])
        .assert_refused(&["input.safetensors: input_ids: holds 11 at [0, 3]"]);
    let types = ("token_type_ids", ids(&[[0, 1, 2, 0]]));
    run("tiny-bert", &[tokens.clone(), types], &[])
        .assert_refused(&["input.safetensors: token_type_ids: holds 2 at [0, 2]"]);
    let positions = ("position_ids", ids(&[[0, 1, 2, 16]]));
    run("tiny-bert", &[tokens, positions], &[])
        .assert_refused(&["input.safetensors: position_ids: needs row 16"]);
    if !is_present("families/vit") {
        return;
    }
    let pixels = Tensor::zeros((1, 3, 5, 6), DType::F32, &Device::Cpu).unwrap();
    run("families/vit", &[("pixel_values", pixels)], &[])
        .assert_refused(&["input.safetensors: pixel_values: holds images of 5 by 6"]);
}

#[test]
fn types_and_positions_that_a_model_does_not_read_are_refused() {
    if !is_present("families") {
        return;
    }
    let tokens = ("input_ids", ids(&[[1, 2, 3, 4]]));
    let types = ("token_type_ids", ids(&[[0, 0, 1, 1]]));
    for model in ["families/llama", "families/distilbert", "tiny-gpt2"] {
        run(model, &[tokens.clone(), types.clone()], &[]).assert_refused(&[
            "token_type_ids",
            "no table",
            "leave them out",
        ]);
    }
    let positions = ("position_ids", ids(&[[3, 2, 1, 0]]));
    run("families/bloom", &[tokens.clone(), positions.clone()], &[]).assert_refused(&[
        "position_ids",
        "no positions",
        "leave them out",
    ]);
    run("families/llama", &[tokens, positions], &[]).assert_status(0);
}

#[test]
fn a_decoders_tokens_are_named_and_not_read_by_an_encoder() {
    let tokens = ("input_ids", ids(&[[1, 2, 3, 4]]));
    let beyond = ("decoder_input_ids", ids(&[[1, 2, 3, 99]]));
    run("tiny-bert", std::slice::from_ref(&beyond), &[]).assert_refused(&["input_ids: missing"]);
    run("tiny-bert", &[tokens.clone(), beyond.clone()], &[]).assert_status(0);
    if !is_present("families/t5") {
        return;
    }
    run("families/t5", &[tokens, beyond], &[])
        .assert_refused(&["input.safetensors: decoder_input_ids: holds 99 at [0, 3]"]);
}

#[test]
fn a_mask_of_another_shape_is_compared_with_what_is_there() {
    let tokens = ("input_ids", ids(&[[1, 2, 3, 4], [4, 3, 2, 1]]));
    let mask = ("attention_mask", ids(&[[1, 1, 1, 0]]));
    run("tiny-bert", &[tokens, mask], &[])
        .assert_refused(&["attention_mask has shape [1, 4]", "go with input_ids"]);
}

#[test]
fn an_input_of_nothing_is_told_what_a_model_reads() {
    run("tiny-bert", &[("ids", ids(&[[1, 2, 3, 4]]))], &[]).assert_refused(&[
        "it holds ids",
        "bert reads input_ids",
        "hidden_states",
    ]);
}

#[cfg(unix)]
#[test]
fn an_output_replaces_no_file_beside_the_weights() {
    let scratch = Scratch::of("tiny-bert");
    for name in [
        "tokenizer.json",
        "generation_config.json",
        "chat_template.jinja",
    ] {
        let file = scratch.weights().with_file_name(name);
        // Like in the Hub's cache.
        let blob = scratch.path("out").join("blob");
        fs::write(&blob, "{}").unwrap();
        std::os::unix::fs::symlink(&blob, &file).unwrap();
        let mut command = program();
        command
            .arg("run")
            .arg("--model")
            .arg(scratch.weights().parent().unwrap());
        command.arg("--input").arg(scratch.input());
        answer(command.arg("--output").arg(&file))
            .assert_refused(&[name, "a file that the run reads"]);
        assert_eq!(fs::read(&file).unwrap(), b"{}");
        fs::remove_file(&file).unwrap();
    }
}
