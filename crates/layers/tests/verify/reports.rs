//! A run is verified against a whole fixture, and the report names the first deviation.

use std::collections::HashMap;

use candle_blocks::verify::{Basis, Comparer, Fixture, Outcome, Report, Scope, verify};
use candle_core::{DType, Device, Tensor};

use crate::planted::{Case, DIMS, Draft, good_run};

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
            .contains("FAIL: the fixture contains nothing to compare with")
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
fn requested_gradients_that_the_fixture_lacks_are_a_failure() {
    let (draft, produced) = good_run(2);
    let fixture = Fixture::open(draft.write()).unwrap();
    let report = Comparer::new().verify(&fixture, &produced, Scope::ForwardAndBackward);
    assert!(!report.passed, "{report}");
    assert!(
        report.to_string().contains("contains no gradients"),
        "{report}"
    );
    assert!(
        Comparer::new()
            .verify(&fixture, &produced, Scope::Forward)
            .passed
    );
}
