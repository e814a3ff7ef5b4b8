//! If the system has less memory than a checkpoint needs, the program says so in one line and exits with status 2.

#![cfg(target_os = "linux")]

use std::process::Command;

use safetensors::Dtype;
use serde_json::json;

use crate::{
    scratch::{answer, program},
    synthetic::{Sizes, write_bert, write_typed},
};

/// 57 MB, with 28 MB for each block.
const SIZES: Sizes = Sizes {
    d_model: 768,
    d_ff: 3072,
    n_blocks: 2,
};
const MIB: usize = 1 << 20;
const N_BYTES: usize = 57_000_000;
/// For the program itself and its threads.
const BESIDE: usize = 32 * MIB;

#[test]
fn a_limit_below_what_a_checkpoint_takes_is_an_error_of_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let [model, input] = ["model", "input"].map(|name| folder.path().join(name));
    std::fs::create_dir(&model).unwrap();
    std::fs::create_dir(&input).unwrap();
    write_bert(&model, SIZES, 0);
    let tensor = ("hidden_states".to_string(), Dtype::F32, vec![1, 4, 768]);
    write_typed(&input, &json!({}), &[tensor]);
    for (precision, peak) in [("none", N_BYTES), ("f32", N_BYTES / 2 * 3)] {
        let most = peak + BESIDE;
        let mut n_refused = 0;
        for limit in (8 * MIB..most).step_by(8 * MIB).chain([most]) {
            let mut limited = Command::new("sh");
            let shell = format!("ulimit -d {}; exec \"$0\" \"$@\"", limit >> 10);
            limited.args(["-c", &shell]).arg(program().get_program());
            limited.arg("run").arg("--model").arg(&model);
            limited.arg("--input").arg(input.join("model.safetensors"));
            limited.arg("--output").arg(folder.path().join("output"));
            limited.args(["--precision", precision]);
            limited.env("RAYON_NUM_THREADS", "2");
            let answer = answer(&mut limited);
            let said = &answer.stderr;
            if answer.status == Some(0) {
                continue;
            }
            n_refused += 1;
            let is_told = said.starts_with(&format!("error: {}", model.display()))
                && said.lines().count() == 1
                && said.contains(" bytes of memory are needed, and `ulimit -d` allows ");
            assert!(
                answer.status == Some(2) && is_told && limit < most,
                "{precision} under {limit} of {most}: {:?} {said}",
                answer.status
            );
        }
        assert!(
            n_refused * 8 * MIB >= peak / 10 * 8,
            "{precision}: {n_refused}"
        );
    }
}
