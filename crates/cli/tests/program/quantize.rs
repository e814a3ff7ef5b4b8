//! `quantize` saves a quantized checkpoint, and reports each tensor's type.

use std::fs;

use candle_blocks::Checkpoint;
use serde_json::Value;

use crate::said::assert_says;
use crate::scratch::{Answer, answer, program};
use crate::weights::{is_present, weights};

fn quantize(model: &str, to: &str, output: &std::path::Path, flags: &[&str]) -> Answer {
    let mut command = program();
    command.arg("quantize").arg("--model").arg(weights(model));
    command.args(["--to", to]).arg("--output").arg(output);
    answer(command.args(flags))
}

#[test]
fn every_format_is_written_and_reported_by_tensor_and_kind() {
    let folder = tempfile::tempdir().unwrap();
    let model = "gguf/llama/model.gguf";
    if !is_present(model) {
        return;
    }
    for (to, kind) in [
        ("q8_0", "Q8_0"),
        ("q4_0", "Q4_0"),
        ("q4_k", "Q4_K"),
        ("q6_k", "Q6_K"),
        ("w4a16", "int4"),
    ] {
        let output = folder.path().join(to);
        let answer = quantize(model, to, &output, &["--json", "--group", "32"]);
        answer.assert_status(0);
        let report: Value = answer.json();
        let kinds = report["kinds"].as_object().unwrap();
        let (name, sum) = kinds
            .iter()
            .find(|(name, _)| name.starts_with(kind))
            .unwrap();
        let tensors = report["tensors"].as_array().unwrap();
        let of_kind = tensors.iter().filter(|line| line["kind"] == name.as_str());
        let errors: Vec<f64> = of_kind
            .map(|line| line["error"].as_f64().unwrap())
            .collect();
        assert_eq!(sum["tensors"], errors.len(), "{to}");
        let largest = errors.iter().copied().fold(0.0, f64::max);
        assert_eq!(sum["largest_error"].as_f64(), Some(largest), "{to}");
        assert!(largest < 0.12, "{to}: {largest}");
        let read = Checkpoint::open(&output).unwrap();
        assert_eq!(read.family(), "llama");
        assert!(read.report().missing.is_empty());
        drop(read); // Windows may not replace an open file
        // A second time, it is there.
        let again = quantize(model, to, &output, &[]);
        again.assert_status(2);
        assert_says(&again.stderr, &[to, "--replace"]);
        quantize(model, to, &output, &["--replace"]).assert_status(0);
        // Nor is what is read replaced.
        let own = quantize(output.to_str().unwrap(), to, &output, &["--replace"]);
        own.assert_refused(&["--output", to]);
    }
}

#[test]
fn tensors_stored_in_another_type_are_noted_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let answer = quantize("tiny-bert", "q4_k", &folder.path().join("model.gguf"), &[]);
    answer.assert_status(0);
    assert_says(&answer.stdout, &["blk.0.attn_q.weight", "F16", "left out"]);
    assert_says(
        &answer.stderr,
        &[
            "F16, since its rows with 20 elements are not whole blocks of Q4_K's 256",
            "pooler.dense",
            "no tokenizer",
        ],
    );
    let refused = quantize("tiny-gpt2", "w4a16", &folder.path().join("out"), &[]);
    refused.assert_status(2);
    assert_says(&refused.stderr, &["[d_in, d_out]", "GGUF"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
