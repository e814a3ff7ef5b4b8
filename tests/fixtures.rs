//! Fixture files are read whole and in order, or refused with a line that names file and tensor; a run
//! is verified against all of a fixture.

mod planted;

use std::collections::HashMap;

use candle_blocks::Error;
use candle_blocks::verify::{Basis, Comparer, Fixture, Outcome, Report, Scope, verify};
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::Dtype;

use planted::{Case, Draft, values};

const DIMS: [usize; 3] = [2, 3, 4];

/// The file is refused, with a message that names it and holds every given part.
#[track_caller]
fn assert_refused(draft: &Draft, parts: &[&str]) -> Error {
    refused(draft.write(), parts)
}

#[track_caller]
fn refused(path: std::path::PathBuf, parts: &[&str]) -> Error {
    let error = Fixture::open(&path).expect_err("must be refused");
    let message = error.to_string();
    for part in parts.iter().chain([&"block.fixture.safetensors"]) {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
    error
}

/// A fixture of `n_layers` blocks, and a good run of it.
fn good_run(n_layers: usize) -> (Draft, HashMap<String, Tensor>) {
    let mut draft = Draft::with_hidden_states(&DIMS);
    let mut produced = HashMap::new();
    // Written last block first: the order must come from the names.
    for layer in (0..n_layers).rev() {
        for (i, point) in ["output", "feed_forward.output", "feed_forward.input"]
            .iter()
            .enumerate()
        {
            let name = format!("layers.{layer}.{point}");
            let case = Case::new(&DIMS, 1.0, (10 * layer + i) as u64);
            draft = draft.case(&name, &case);
            produced.insert(name, case.tensor(&case.ours()));
        }
    }
    (draft, produced)
}

/// The same with a final norm and gradients.
fn good_run_with_gradients() -> (Draft, HashMap<String, Tensor>) {
    let (mut draft, mut produced) = good_run(2);
    let shapes: [(&str, &[usize]); 5] = [
        ("last_hidden_state", &DIMS),
        ("grads.hidden_states", &DIMS),
        ("grads.h.10.mlp.c_fc.weight", &[4, 16]),
        ("grads.h.2.mlp.c_fc.bias", &[16]),
        ("grads.zz.weight", &[4]),
    ];
    for (seed, (name, dims)) in shapes.into_iter().enumerate() {
        let case = Case::new(dims, 1e-3, seed as u64);
        draft = draft.case(name, &case);
        produced.insert(name.to_string(), case.tensor(&case.ours()));
    }
    (draft, produced)
}

fn spoil(produced: &mut HashMap<String, Tensor>, name: &str) {
    let wrong = (&produced[name] * 1.001).unwrap();
    produced.insert(name.to_string(), wrong);
}

fn names(report: &Report) -> Vec<&str> {
    report.comparisons.iter().map(|c| c.name.as_str()).collect()
}

#[test]
fn a_good_run_passes() {
    let (draft, mut produced) = good_run(2);
    produced.insert(
        "layers.0.attention.output".to_string(),
        produced["layers.0.output"].clone(),
    );
    let report = verify(&Fixture::open(draft.write()).unwrap(), &produced);
    assert!(report.passed, "{report}");
    assert_eq!(report.first_divergence, None);
    assert!(
        report
            .to_string()
            .ends_with("ok: 6 of 6 tensors within tolerance")
    );
}

#[test]
fn stages_come_in_order_of_execution_with_twelve_layers() {
    let (draft, _) = good_run(12);
    let fixture = Fixture::open(draft.f32("last_hidden_state", &DIMS, 9).write()).unwrap();
    let stages: Vec<&str> = fixture
        .stages()
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    let mut expected = Vec::new();
    for layer in 0..12 {
        for point in ["feed_forward.input", "feed_forward.output", "output"] {
            expected.push(format!("layers.{layer}.{point}"));
        }
    }
    expected.push("last_hidden_state".to_string());
    assert_eq!(stages, expected);
    assert!(fixture.stages()[0].1.exact().is_some());
    assert!(fixture.stages()[36].1.exact().is_none());
    assert_eq!(fixture.stages()[0].1.depth(), 1);
    assert_eq!(fixture.stages()[36].1.depth(), 12);
}

#[test]
fn the_first_divergence_is_the_first_in_order_of_execution() {
    let (draft, mut produced) = good_run(12);
    let fixture = Fixture::open(draft.write()).unwrap();
    for name in [
        "layers.11.output",
        "layers.10.feed_forward.output",
        "layers.2.output",
    ] {
        spoil(&mut produced, name);
    }
    let report = verify(&fixture, &produced);
    assert!(!report.passed);
    assert_eq!(report.first_divergence.as_deref(), Some("layers.2.output"));
    let text = report.to_string();
    assert!(
        text.ends_with("FAIL: 3 of 36 tensors; the first is layers.2.output"),
        "{text}"
    );
    let place = format!("{:?}", report.comparisons[8].worst.as_ref().unwrap().index);
    let row = text
        .lines()
        .find(|line| line.starts_with("layers.2.output"))
        .unwrap();
    assert!(row.contains(&place) && row.ends_with("FAIL"), "{row}");
}

#[test]
fn a_stage_that_the_run_did_not_produce_is_a_failure() {
    let (draft, mut produced) = good_run(2);
    produced.remove("layers.1.feed_forward.input");
    let report = verify(&Fixture::open(draft.write()).unwrap(), &produced);
    assert_eq!(
        report.first_divergence.as_deref(),
        Some("layers.1.feed_forward.input")
    );
    assert_eq!(report.comparisons[3].outcome, Outcome::Missing);
    assert!(
        report
            .to_string()
            .contains("layers.1.feed_forward.input: the run did not produce it")
    );
}

#[test]
fn a_fixture_of_inputs_only_proves_nothing() {
    let draft = Draft::with_hidden_states(&DIMS);
    let report = verify(&Fixture::open(draft.write()).unwrap(), &HashMap::new());
    assert!(!report.passed);
    assert!(
        report
            .to_string()
            .contains("FAIL: the fixture holds nothing to compare with")
    );
}

#[test]
fn misspelt_stages_are_listed_as_not_compared() {
    let (draft, produced) = good_run(1);
    let draft = draft.f32("layers.0.feedforward.output", &DIMS, 1);
    let report = verify(&Fixture::open(draft.write()).unwrap(), &produced);
    assert_eq!(report.not_compared, ["layers.0.feedforward.output"]);
    assert!(
        report
            .to_string()
            .contains("not compared: layers.0.feedforward.output")
    );
}

#[test]
fn gradients_are_compared_when_the_run_produced_any() {
    let (draft, mut produced) = good_run_with_gradients();
    let fixture = Fixture::open(draft.write()).unwrap();
    let report = verify(&fixture, &produced);
    assert!(report.passed, "{report}");
    let gradients = [
        "grads.h.2.mlp.c_fc.bias",
        "grads.h.10.mlp.c_fc.weight",
        "grads.zz.weight",
        "grads.hidden_states",
    ];
    assert_eq!(names(&report)[7..], gradients);
    assert_eq!(fixture.gradients()[0].1.depth(), 4);

    // One left out is a failure; all left out is a forward run, and says so.
    produced.remove("grads.zz.weight");
    let report = verify(&fixture, &produced);
    assert_eq!(report.first_divergence.as_deref(), Some("grads.zz.weight"));
    produced.retain(|name, _| !name.starts_with("grads."));
    let report = verify(&fixture, &produced);
    assert!(report.passed);
    assert_eq!(report.not_compared, gradients);
    let text = report.to_string();
    assert!(text.contains("not compared: 4 gradients\n"), "{text}");
    let report = Comparer::new().verify(&fixture, &produced, Scope::ForwardAndBackward);
    assert_eq!(report.first_divergence.as_deref(), Some(gradients[0]));
}

#[test]
fn rows_that_the_mask_drops_are_not_compared() {
    let (draft, mut produced) = good_run(1);
    let draft = draft.i64("attention_mask", &[2, 3], &[1, 1, 0, 1, 1, 1]);
    let fixture = Fixture::open(draft.write()).unwrap();
    assert_eq!(fixture.kept_rows().unwrap().count(), 5);
    let with_fault_in_row = |row: usize, produced: &HashMap<String, Tensor>| {
        let mut ours: Vec<f32> = produced["layers.0.output"]
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap();
        ours[row * DIMS[2] + 1] = f32::NAN;
        Tensor::from_vec(ours, &DIMS, &Device::Cpu).unwrap()
    };
    let (dropped, kept) = (
        with_fault_in_row(2, &produced),
        with_fault_in_row(3, &produced),
    );
    produced.insert("layers.0.output".to_string(), dropped);
    assert!(verify(&fixture, &produced).passed);
    produced.insert("layers.0.output".to_string(), kept);
    let report = verify(&fixture, &produced);
    assert_eq!(
        report.comparisons[2].worst.as_ref().unwrap().index,
        [1, 0, 1]
    );
}

#[test]
fn the_table_says_what_the_tolerance_rests_on() {
    let (draft, mut produced) = good_run(1);
    let draft = draft.f32("last_hidden_state", &DIMS, 9);
    let fixture = Fixture::open(draft.write()).unwrap();
    produced.insert(
        "last_hidden_state".to_string(),
        fixture.tensor("last_hidden_state").unwrap().clone(),
    );
    let coarse = produced["layers.0.output"].to_dtype(DType::BF16).unwrap();
    produced.insert("layers.0.output".to_string(), coarse);
    let report = verify(&fixture, &produced);
    assert!(report.passed, "{report}");
    let bases: Vec<Basis> = report
        .comparisons
        .iter()
        .map(|c| c.tolerance.unwrap().basis)
        .collect();
    use Basis::{GrowthModel, ScaledTorchError, TorchError};
    assert_eq!(
        bases,
        [TorchError, TorchError, ScaledTorchError, GrowthModel]
    );
    let text = report.to_string();
    let rows: Vec<&str> = text.lines().collect();
    assert!(
        rows[2].ends_with("ok") && rows[3].ends_with("ok (scaled)"),
        "{text}"
    );
    assert!(rows[4].ends_with("ok (no f64 twin)"), "{text}");
}

#[test]
fn json_stays_valid_with_infinite_errors() {
    let (draft, mut produced) = good_run(1);
    let nan = produced["layers.0.output"].affine(f64::NAN, 0.0).unwrap();
    produced.insert("layers.0.output".to_string(), nan);
    produced.remove("layers.0.feed_forward.input");
    let report = verify(&Fixture::open(draft.write()).unwrap(), &produced);
    let text = serde_json::to_string(&report).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["passed"], false);
    let [missing, good, nan] = [0, 1, 2].map(|i| &json["comparisons"][i]);
    assert_eq!(missing["outcome"]["result"], "missing");
    assert_eq!(missing["ratio"], serde_json::Value::Null);
    assert_eq!(good["outcome"]["result"], "within_tolerance");
    assert!(good["max_abs"].is_f64() && good["tolerance"]["worst"].is_f64());
    assert_eq!(nan["max_abs"], "inf");
    assert_eq!(nan["worst"]["ours"], "NaN");
}

#[test]
fn everything_in_a_fixture_can_be_read() {
    let draft = Draft::with_hidden_states(&DIMS)
        .raw(
            "attention_mask",
            Dtype::BOOL,
            &[2, 3],
            vec![1, 1, 1, 1, 0, 0],
        )
        .i64("input_ids", &[2, 3], &[5, 6, 7, 8, 9, 0])
        .f32("grad_output", &DIMS, 3)
        .metadata("family", "bert");
    let fixture = Fixture::open(draft.write()).unwrap();
    assert_eq!(fixture.hidden_states().dims(), DIMS);
    let mask = fixture.attention_mask().unwrap();
    assert_eq!(mask.dtype(), DType::U8);
    assert_eq!(values(mask), [1., 1., 1., 1., 0., 0.]);
    assert_eq!(values(fixture.input_ids().unwrap())[1], 6.0);
    assert_eq!(fixture.grad_output().unwrap().dims(), DIMS);
    assert_eq!(fixture.metadata()["family"], "bert");
    assert_eq!(fixture.path(), draft.path());
    assert!(fixture.unknown().is_empty() && fixture.stages().is_empty());
}

#[test]
fn masks_of_every_usual_type_mean_the_same() {
    let bytes_of = |size: usize| {
        let one = |keep: u8| (0..size).map(move |i| if i == 0 { keep } else { 0 });
        [1u8, 0, 1, 1, 1, 0]
            .into_iter()
            .flat_map(one)
            .collect::<Vec<u8>>()
    };
    let floats: Vec<u8> = [1f32, 0., 1., 1., 1., 0.]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let types = [
        (Dtype::BOOL, bytes_of(1)),
        (Dtype::U8, bytes_of(1)),
        (Dtype::I32, bytes_of(4)),
        (Dtype::I64, bytes_of(8)),
        (Dtype::F32, floats),
    ];
    for (dtype, bytes) in types {
        let draft = Draft::with_hidden_states(&DIMS).raw("attention_mask", dtype, &[2, 3], bytes);
        let fixture = Fixture::open(draft.write()).unwrap();
        let mask = fixture.attention_mask().unwrap();
        assert_eq!(values(mask), [1., 0., 1., 1., 1., 0.], "{dtype:?}");
    }
}

#[test]
fn what_is_not_a_safetensors_file_is_refused() {
    let draft = Draft::empty();
    let huge_header = [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat();
    let garbage: [&[u8]; 4] = [
        b"",
        b"PK\x03\x04 this is a zip",
        b"\x02\0\0\0\0\0\0\0{]",
        &huge_header,
    ];
    for bytes in garbage {
        let error = refused(draft.write_bytes(bytes), &["safetensors"]);
        assert!(matches!(error, Error::NotSafetensors { .. }), "{error}");
    }
    let (draft, _) = good_run(1);
    let whole = std::fs::read(draft.write()).unwrap();
    let error = refused(draft.write_bytes(&whole[..whole.len() - 1]), &[]);
    assert!(matches!(error, Error::NotSafetensors { .. }), "{error}");
}

#[test]
fn a_file_that_is_not_there_is_refused() {
    let error = refused(Draft::empty().path(), &["read"]);
    assert!(matches!(error, Error::Io { .. }));
}

#[test]
fn missing_hidden_states_are_refused() {
    let draft = Draft::empty().f32("encoder.hidden_state", &DIMS, 1);
    let error = assert_refused(&draft, &["hidden_states", "similar encoder.hidden_state"]);
    assert!(matches!(error, Error::MissingTensor { .. }));
}

#[test]
fn hidden_states_that_no_block_can_take_are_refused() {
    let shape = |dims: &[usize]| Draft::with_hidden_states(dims);
    assert_refused(
        &shape(&[3, 4]),
        &["hidden_states", "[3, 4]", "[batch, seq, d_model]"],
    );
    assert_refused(
        &shape(&[0, 3, 4]),
        &["hidden_states", "empty batch", "[0, 3, 4]"],
    );
    assert_refused(
        &shape(&[2, 0, 4]),
        &["hidden_states", "length zero", "[2, 0, 4]"],
    );
    assert_refused(&shape(&[2, 3, 0]), &["hidden_states", "is empty"]);
    // The other sizes would overflow candle's strides.
    assert_refused(&shape(&[0, 1 << 40, 1 << 40]), &["hidden_states"]);
    let integers = Draft::empty().i64("hidden_states", &[1, 1, 1], &[1]);
    let error = assert_refused(&integers, &["hidden_states", "I64"]);
    assert!(matches!(error, Error::UnsupportedDType { .. }));
}

#[test]
fn masks_that_are_none_are_refused() {
    let mask = |dims: &[usize], values: &[i64]| {
        Draft::with_hidden_states(&DIMS).i64("attention_mask", dims, values)
    };
    let error = assert_refused(
        &mask(&[3, 2], &[1; 6]),
        &["attention_mask", "[3, 2]", "[2, 3]"],
    );
    assert!(matches!(error, Error::InvalidFixture { .. }));
    assert_refused(&mask(&[6], &[1; 6]), &["attention_mask", "[6]"]);
    assert_refused(
        &mask(&[2, 1, 1, 3], &[1; 6]),
        &["attention_mask", "[2, 1, 1, 3]"],
    );
    assert_refused(
        &mask(&[2, 3], &[1, 1, 2, 1, 1, 1]),
        &["attention_mask", "holds 2 at [0, 2]"],
    );
    assert_refused(
        &mask(&[2, 3], &[1, 1, 1, 1, -1, 1]),
        &["holds -1 at [1, 1]"],
    );
    assert_refused(
        &mask(&[2, 3], &[0; 6]),
        &["attention_mask", "drops every row"],
    );
    let nan: Vec<u8> = [1f32, f32::NAN, 1., 1., 1., 1.]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let draft = Draft::with_hidden_states(&DIMS).raw("attention_mask", Dtype::F32, &[2, 3], nan);
    assert_refused(&draft, &["attention_mask", "NaN at [0, 1]"]);
}

#[test]
fn inputs_that_do_not_go_with_hidden_states_are_refused() {
    let draft = || Draft::with_hidden_states(&DIMS);
    assert_refused(
        &draft().i64("input_ids", &[2, 2], &[1; 4]),
        &["input_ids", "[2, 2]", "[2, 3]"],
    );
    assert_refused(
        &draft().f32("input_ids", &[2, 3], 1),
        &["input_ids", "integers"],
    );
    assert_refused(
        &draft().f32("grad_output", &[2, 3, 5], 1),
        &["grad_output", "[2, 3, 4]"],
    );
}

#[test]
fn results_that_prove_nothing_are_refused() {
    let draft = || Draft::with_hidden_states(&DIMS);
    let stage = || draft().f32("layers.0.output", &DIMS, 1);
    let twin = "layers.0.output.f64";
    assert_refused(
        &stage().f64(twin, &[2, 3], &[0.0; 6]),
        &[twin, "[2, 3]", "[2, 3, 4]"],
    );
    assert_refused(&stage().f32(twin, &DIMS, 1), &[twin, "F32", "F64"]);
    assert_refused(
        &stage().f64(twin, &DIMS, &[f64::NAN; 24]),
        &[twin, "24 element"],
    );
    assert_refused(
        &draft().f64(twin, &DIMS, &[0.0; 24]),
        &[twin, "does not hold"],
    );
    assert_refused(
        &draft().f32("grads.w", &[4, 0], 1),
        &["grads.w", "is empty"],
    );
    assert_refused(
        &draft().i64("layers.0.output", &[1], &[1]),
        &["layers.0.output", "I64"],
    );
    let eight_bits = draft().raw("layers.0.output", Dtype::F8_E4M3, &[2], vec![0, 0]);
    assert_refused(&eight_bits, &["layers.0.output", "F8_E4M3"]);
}

#[test]
fn random_bytes_never_panic() {
    let (draft, _) = good_run(1);
    let whole = std::fs::read(draft.write()).unwrap();
    for at in 0..whole.len().min(1500) {
        for flip in [0x01, 0x10, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            // Some flips leave a readable file; none may end the program.
            if let Ok(fixture) = Fixture::open(draft.write_bytes(&bytes)) {
                verify(&fixture, &HashMap::new());
            }
        }
    }
}
