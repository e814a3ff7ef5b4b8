//! `candle-blocks bench`: what it reports, that it keeps to its threads, and what it refuses.
//!
//! Times on a busy machine vary; the tests only check facts that hold on every machine.

use serde_json::Value;

use crate::{
    scratch::{Answer, answer, program},
    weights::weights,
};

fn bench(flags: &[&str]) -> Answer {
    let quick = ["bench", "--seconds", "0.05"];
    answer(program().args(quick).args(flags))
}

fn report(flags: &[&str]) -> Value {
    let answer = bench(&[flags, &["--json"]].concat());
    answer.assert_status(0);
    assert_eq!(answer.stderr, "");
    answer.json()
}

#[track_caller]
fn number(report: &Value, key: &str) -> f64 {
    let number = report[key].as_f64();
    number.unwrap_or_else(|| panic!("{key} is no number in {report:#}"))
}

#[track_caller]
fn assert_close(found: f64, expected: f64) {
    let error = (found - expected).abs();
    assert!(error <= 1e-9 * expected.abs(), "{found}, not {expected}");
}

/// Checks relations between the values in a report.
#[track_caller]
fn assert_consistent(report: &Value) {
    let [median, min] = ["median_ms", "min_ms"].map(|key| number(report, key));
    assert!(0.0 < min && min <= median, "{report:#}");
    assert!(number(report, "samples") >= 5.0, "{report:#}");
    let [gflop, gflops] = ["gflop", "gflops"].map(|key| number(report, key));
    assert_close(gflops, gflop / (median * 1e-3));
    let [peak, share] = ["peak_gflops", "share_of_peak"].map(|key| number(report, key));
    assert_close(share, gflops / peak);
    // A product cannot be faster than its multiply-adds. (The clock may have been lower while they were measured.)
    assert!(0.0 < share && share < 1.2, "{report:#}");
    assert!(peak > 0.1, "{report:#}");
}

#[test]
fn a_feed_forward_is_reported_with_its_sizes_and_operations() {
    let report = report(&[
        "--op",
        "feed_forward",
        "--batch",
        "3",
        "--seq",
        "7",
        "--d-model",
        "40",
        "--d-ff",
        "90",
    ]);
    assert_consistent(&report);
    assert_close(
        number(&report, "gflop"),
        1e-9 * 4.0 * 3.0 * 7.0 * 40.0 * 90.0,
    );
    for (key, value) in [("batch", 3), ("seq", 7), ("d_model", 40), ("d_ff", 90)] {
        assert_eq!(report[key], value, "{key}");
    }
    assert_eq!(report["op"], "feed_forward");
    assert_eq!(report["precision"], "f32");
    assert_eq!(report["heads"], Value::Null);
}

#[test]
fn a_block_counts_the_products_of_its_attention() {
    let report = report(&[
        "--op",
        "block",
        "--batch",
        "2",
        "--seq",
        "9",
        "--d-model",
        "48",
        "--heads",
        "4",
    ]);
    assert_consistent(&report);
    let (rows, d) = (18.0, 48.0);
    let linear = 2.0 * rows * (4.0 * d * d + 2.0 * d * 4.0 * d);
    assert_close(
        number(&report, "gflop"),
        1e-9 * (linear + 4.0 * rows * 9.0 * d),
    );
    assert_eq!(report["heads"], 4);
    assert_eq!(report["d_ff"], 4 * 48);
}

#[test]
fn a_model_is_measured_in_its_own_sizes() {
    for (name, family) in [("tiny-bert", "bert"), ("tiny-gpt2", "gpt2")] {
        let model = weights(name);
        let report = report(&[
            "--op",
            "model",
            "--model",
            model.to_str().unwrap(),
            "--seq",
            "5",
        ]);
        assert_consistent(&report);
        assert_eq!(report["family"], family);
        let config = candle_blocks::Checkpoint::open(&model).unwrap();
        let config = config.config();
        assert_eq!(report["layers"], config.layers.len());
        assert_eq!(report["d_model"], config.blocks[0].d_model());
        assert_eq!(
            report["heads"],
            config.blocks[0].attention().unwrap().n_heads
        );
    }
}

#[test]
fn every_form_of_the_weights_is_measured() {
    let model = weights("tiny-bert");
    let model = ["--op", "model", "--model", model.to_str().unwrap()];
    let sizes = ["--d-model", "64", "--seq", "4"];
    for (op, sizes) in [
        (&model as &[&str], &sizes[2..]),
        (&["--op", "block"], &sizes),
        (&["--op", "feed_forward"], &sizes),
    ] {
        for precision in ["f32", "none"] {
            let report = report(&[op, sizes, &["--precision", precision]].concat());
            assert_consistent(&report);
            assert_eq!(report["precision"], precision);
        }
    }
}

#[test]
fn the_instruction_set_that_is_forced_is_the_one_reported() {
    let mut command = program();
    command.env("CANDLE_BLOCKS_ISA", "portable");
    let flags = [
        "bench",
        "--op",
        "feed_forward",
        "--seq",
        "2",
        "--d-model",
        "32",
        "--json",
    ];
    let answer = answer(command.args(flags).args(["--seconds", "0.01"]));
    answer.assert_status(0);
    let report = answer.json();
    assert_eq!(report["isa"], "portable");
    assert_consistent(&report);
}

#[test]
fn an_unknown_instruction_set_is_refused_in_one_line() {
    let mut command = program();
    command.env("CANDLE_BLOCKS_ISA", "avx3");
    command.env("RUST_BACKTRACE", "1");
    let flags = ["bench", "--op", "feed_forward", "--d-model", "32"];
    let answer = answer(command.args(flags));
    answer.assert_refused(&["CANDLE_BLOCKS_ISA=avx3", "portable"]);
}

#[test]
fn text_says_what_json_says() {
    let answer = bench(&[
        "--op",
        "block",
        "--seq",
        "4",
        "--d-model",
        "64",
        "--threads",
        "1",
    ]);
    answer.assert_status(0);
    for words in [
        "block of 1 heads: 1 x 4 rows of 64 (hidden 256)",
        "threads: 1",
        "median",
        "GFLOP/s",
    ] {
        assert!(answer.stdout.contains(words), "no {words:?} in {answer:#?}");
    }
}

#[test]
fn the_requested_number_of_threads_overrides_the_environment() {
    for requested in ["1", "3"] {
        let mut command = program();
        command.env("RAYON_NUM_THREADS", "2");
        command.args([
            "bench",
            "--op",
            "feed_forward",
            "--seq",
            "64",
            "--d-model",
            "256",
        ]);
        let answer = answer(command.args(["--seconds", "0.05", "--threads", requested, "--json"]));
        answer.assert_status(0);
        assert_eq!(answer.json()["threads"].to_string(), requested);
    }
}

/// Measures the processor time in the shell instead of trusting the program.
#[cfg(unix)]
#[test]
fn one_thread_takes_no_more_processor_time_than_passes() {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "\"$@\" >/dev/null || exit 1; times", "sh"]);
    shell.arg(program().get_program());
    shell.args([
        "bench",
        "--op",
        "block",
        "--seq",
        "256",
        "--d-model",
        "256",
        "--heads",
        "4",
    ]);
    let start = std::time::Instant::now();
    let answer = answer(shell.args(["--threads", "1", "--seconds", "1"]));
    let passed = start.elapsed().as_secs_f64();
    answer.assert_status(0);
    // The second line is of the processes that the shell ran: "0m1.230000s 0m0.040000s".
    let children = answer.stdout.lines().nth(1).unwrap();
    let seconds = |time: &str| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        60.0 * minutes.parse::<f64>().unwrap() + seconds.parse::<f64>().unwrap()
    };
    let taken: f64 = children.split_whitespace().map(seconds).sum();
    assert!(
        taken > 0.0 && taken < 1.1 * passed,
        "{taken} s of {passed} s"
    );
}

#[test]
fn bad_options_are_refused_with_what_is_right() {
    let tiny = weights("tiny-bert");
    let tiny = tiny.to_str().unwrap();
    let block = ["--op", "block"];
    let model = ["--op", "model", "--model", tiny];
    for (op, flags, words) in [
        (
            &block as &[&str],
            &["--d-model", "100", "--heads", "7"] as &[&str],
            &["7 heads do not divide the width 100"] as &[&str],
        ),
        (&block, &["--batch", "0"], &["--batch is 0"]),
        (&block, &["--seq", "0"], &["--seq is 0"]),
        (&block, &["--d-model", "0"], &["--d-model is 0"]),
        (&block, &["--d-ff", "0"], &["--d-ff is 0"]),
        (&block, &["--heads", "0"], &["--heads is 0"]),
        (&block, &["--threads", "0"], &["--threads is 0"]),
        (
            &block,
            &["--threads", "5000"],
            &["--threads is 5000", "4096"],
        ),
        (&block, &["--seconds", "nan"], &["--seconds is NaN"]),
        (&block, &["--seconds", "0"], &["--seconds is 0"]),
        (
            &block,
            &["--batch", "1000000", "--seq", "100000"],
            &["GiB", "smaller"],
        ),
        (
            &block,
            &["--batch", "18446744073709551615"],
            &["GiB", "smaller"],
        ),
        (
            &block,
            &["--d-model", "18446744073709551615", "--heads", "1"],
            &["d_model is 18446744073709551615", "at most"],
        ),
        (
            &block,
            &["--d-model", "268435456", "--heads", "1"],
            &["GiB", "smaller"],
        ),
        (&block, &["--model", tiny], &["--op model"]),
        (&block, &["--hub", "owner/name"], &["--op model"]),
        (
            &["--op", "feed_forward"],
            &["--heads", "2"],
            &["--heads", "--op block"],
        ),
        (&["--op", "model"], &[], &["--model PATH"]),
        (
            &["--op", "model", "--model", "nowhere"],
            &[],
            &["nowhere: cannot open"],
        ),
        (
            &model,
            &["--d-model", "64"],
            &["--d-model", "has its own sizes"],
        ),
        (&model, &["--heads", "2"], &["--heads", "has its own sizes"]),
    ] {
        let answer = answer(program().arg("bench").args(op).args(flags));
        answer.assert_refused(words);
    }
    for (flags, words) in [
        (&["--op", "layer"] as &[&str], "feed_forward, block, model"),
        (&["--seq", "4"], "--op"),
        (
            &["--op", "block", "--precision", "int3"],
            "none, f32, f16, bf16, int8, int4, int4-32, int4-128",
        ),
    ] {
        let answer = bench(flags);
        answer.assert_status(2);
        assert!(answer.stderr.contains(words), "{answer:#?}");
    }
}
