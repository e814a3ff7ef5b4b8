//! Repeats a program's tests, with the CPU computing like a GPU.
//!
//! Layers on CUDA and Metal are composed of candle's operations. The environment variable `CANDLE_BLOCKS_REHEARSE` makes the
//! CPU do the same, and refuse the operations that the device lacks according to the table of candle's back ends.

use std::{
    process::{Command, Output},
    thread,
};

use crate::device::DEVICE_VARIABLE;

/// The variable, whose value is a back end.
pub const VARIABLE: &str = "CANDLE_BLOCKS_REHEARSE";

/// The back end as which the CPU computes.
pub fn rehearsed() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

/// Runs this program's tests as each of these back ends, except tests whose names contain a given part. Does nothing within
/// a rehearsal.
#[track_caller]
pub fn rehearse(backends: &[(&str, &[&str])]) {
    if rehearsed().is_some() {
        return;
    }
    // At once: while one program ends with its longest test, another has use for the processor.
    let outputs: Vec<_> = thread::scope(|scope| {
        let run = |&(backend, left_out)| scope.spawn(move || output_as(backend, left_out));
        let runs: Vec<_> = backends.iter().map(run).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for ((backend, _), output) in backends.iter().zip(outputs) {
        let text = String::from_utf8_lossy(&output.stdout);
        let (_, counts) = text.rsplit_once("test result: ").unwrap_or_default();
        println!("as {backend}: {counts}");
        assert!(output.status.success(), "as {backend}:\n{text}");
    }
}

/// Returns this program's output as one back end.
fn output_as(backend: &str, left_out: &[&str]) -> Output {
    let mut program = Command::new(std::env::current_exe().unwrap());
    for name in left_out {
        program.args(["--skip", name]);
    }
    program
        .args(["--nocapture"])
        .env(VARIABLE, backend)
        .env_remove(DEVICE_VARIABLE) // it is the CPU's, also where a GPU is under test
        .output()
        .unwrap()
}
