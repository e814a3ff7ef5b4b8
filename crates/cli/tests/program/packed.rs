//! Packed models in whole processes: the same bytes for any number of threads, PyTorch's results with every instruction set,
//! and clear errors for checkpoints that cannot be packed.

use std::fs;

use candle_blocks::candle_core::{Device, Tensor};
use candle_blocks::checkpoint::write::write_safetensors;

use crate::{
    committed::present,
    levels::LEVELS,
    scratch::{self, Scratch, answer, program},
    weights::{is_present, left_out, weights},
};

const CHECKPOINTS: [&str; 3] = ["tiny-bert", "tiny-gpt2", "minilm-block0"];
const PRECISIONS: [&str; 7] = ["f32", "f16", "bf16", "int8", "int4", "int4-32", "int4-128"];

/// The bytes that a run in the environment writes.
fn written(scratch: &Scratch, precision: &str, (key, value): (&str, &str)) -> Option<Vec<u8>> {
    let mut command = scratch.run_command(&["--precision", precision]);
    let answer = answer(command.env(key, value));
    if answer.stderr.contains("this CPU lacks") {
        println!("LEFT OUT: {key}={value}, which this CPU lacks");
        return None;
    }
    answer.assert_status(0);
    Some(fs::read(scratch.output()).unwrap())
}

#[test]
fn any_number_of_threads_writes_the_same_bytes() {
    for name in present(CHECKPOINTS, |&name| name) {
        let scratch = Scratch::of(name);
        for precision in PRECISIONS {
            // The program makes at most as many threads as the machine can run.
            let [one, others @ ..] = ["1", "2", "3", "7", "100000"]
                .map(|threads| written(&scratch, precision, ("RAYON_NUM_THREADS", threads)));
            for other in others {
                assert!(one == other, "{name} {precision}");
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_pytorchs_results() {
    for name in present(CHECKPOINTS, |&name| name) {
        let scratch = Scratch::of(name);
        for level in LEVELS {
            let mut command = scratch.verify_command(&["--precision", "f32"]);
            let answer = answer(command.env("CANDLE_BLOCKS_ISA", level));
            if answer.stderr.contains("this CPU lacks") {
                assert_ne!(level, "portable");
                left_out(&format!("{level}, which this CPU lacks"));
                continue;
            }
            answer.assert_status(0);
        }
    }
}

/// int8's sums are exact, and the functions between products are the same: instruction sets differ in f32's last digits.
#[test]
fn levels_agree_on_what_they_round_to() {
    for name in present(CHECKPOINTS, |&name| name) {
        let scratch = Scratch::of(name);
        let stages = LEVELS.map(|level| {
            written(&scratch, "bf16", ("CANDLE_BLOCKS_ISA", level))?;
            Some(scratch::load(&scratch.output()))
        });
        let mut stages = stages.into_iter().flatten();
        let portable = stages.next().unwrap();
        for level in stages {
            for (name, tensor) in &level {
                let difference = (tensor - &portable[name]).unwrap().abs().unwrap();
                let largest = |t: &candle_blocks::candle_core::Tensor| {
                    t.abs()
                        .unwrap()
                        .max_all()
                        .unwrap()
                        .to_scalar::<f32>()
                        .unwrap()
                };
                // One rounding of a bf16 that falls to the other side.
                let bound = 0.02 * largest(&portable[name]);
                assert!(largest(&difference) <= bound, "{name}");
            }
        }
    }
}

#[test]
fn checkpoints_that_cannot_be_packed_are_refused_with_the_cure() {
    let scratch = Scratch::of("tiny-bert");
    for (flags, words) in [
        (
            &["--precision", "f32", "--backward"] as &[&str],
            &["--precision none", "--backward"] as &[&str],
        ),
        (
            &["--precision", "bf16", "--dtype", "f64"],
            &["--precision none", "--dtype f64"],
        ),
    ] {
        scratch.run(flags).assert_refused(words);
    }
}

#[test]
fn a_comparison_that_packing_must_fail_says_why() {
    let scratch = Scratch::of("tiny-bert");
    for finer in ["f32", "f16"] {
        let fails = scratch.verify(&["--precision", "bf16", "--dtype", finer]);
        fails.assert_status(1);
        assert!(
            fails
                .stderr
                .contains("give --dtype bf16 with --precision bf16"),
            "{}",
            fails.stderr
        );
    }
    scratch
        .verify(&["--dtype", "bf16", "--precision", "bf16"])
        .assert_status(0);
    let fails = scratch.verify(&["--precision", "f16"]);
    fails.assert_status(1);
    let words = "give --dtype f16 with --precision f16";
    assert!(fails.stderr.contains(words), "{}", fails.stderr);
    scratch
        .verify(&["--dtype", "f16", "--precision", "f16"])
        .assert_status(0);
    for coarse in ["int8", "int4", "int4-128"] {
        let fails = scratch.verify(&["--precision", coarse]);
        fails.assert_status(1);
        assert!(
            fails
                .stderr
                .contains("int8, int4 and as-stored have no tolerance"),
            "{}",
            fails.stderr
        );
    }
}

#[test]
fn weights_that_are_not_packed_as_stored_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] =
        ["ids", "out"].map(|name| folder.path().join(format!("{name}.safetensors")));
    let ids = Tensor::new(&[[3u32, 4, 5]], &Device::Cpu).unwrap();
    write_safetensors(&input, &[("input_ids".to_string(), ids)], None).unwrap();
    for (model, notes) in [
        (
            "gguf/few-values/model.gguf",
            &[
                "3 matrices of NVFP4 have no packed form: as-stored dequantizes them, and packs them in the first of bf16",
                "2 matrices of Q1_0 have no packed form",
                "1 matrix of TQ1_0 has no packed form: as-stored dequantizes it, and packs it",
                "1 matrix of TQ2_0 has no packed form",
                "1 matrix of TQ2_0 is f32 in every precision: as-stored dequantizes it",
            ][..],
        ),
        (
            "gguf/llama3/model.gguf",
            &["1 matrix of BF16 is not quantized: as-stored packs it in the first of bf16"],
        ),
        (
            "quantized/gptq-3",
            &[
                "7 matrices of 3-bit values have no packed form: as-stored packs each value in 4 bits",
                "1 matrix of F32 is not quantized",
            ],
        ),
        ("gguf/gpt2/model.gguf", &[]),
    ] {
        if !is_present(model.split('/').next().unwrap()) {
            continue;
        }
        for command in ["run", "generate"] {
            for (precision, notes) in [("as-stored", notes), ("int8", &[][..])] {
                let mut run = program();
                run.arg(command).arg("--model").arg(weights(model));
                run.args(["--input", input.to_str().unwrap()]);
                run.args([
                    "--output",
                    output.to_str().unwrap(),
                    "--precision",
                    precision,
                ]);
                run.args(
                    (command == "generate")
                        .then_some(["--max-new-tokens", "1"])
                        .iter()
                        .flatten(),
                );
                let said = answer(&mut run);
                said.assert_status(0);
                let n = said.stderr.matches("as-stored").count();
                assert_eq!(n, notes.len(), "{command} {model}: {}", said.stderr);
                for note in notes {
                    assert!(
                        said.stderr.contains(note),
                        "{command} {model}: {}",
                        said.stderr
                    );
                }
            }
        }
    }
}
