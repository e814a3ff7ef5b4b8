//! Fixture files are read whole and in order, or refused with a line that names file and tensor.

use std::collections::HashMap;

use candle_blocks::Error;
use candle_blocks::verify::{Fixture, verify};
use candle_core::DType;
use safetensors::tensor::Dtype;

use crate::planted::{DIMS, Draft, good_run, normals, values};

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
    assert_eq!(fixture.hidden_states().unwrap().dims(), DIMS);
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
fn files_that_are_not_safetensors_are_refused() {
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
        &["attention_mask", "contains 2 at [0, 2]"],
    );
    assert_refused(
        &mask(&[2, 3], &[1, 1, 1, 1, -1, 1]),
        &["contains -1 at [1, 1]"],
    );
    assert_refused(
        &mask(&[2, 3], &[0; 6]),
        &["attention_mask", "masks every row"],
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
        &[twin, "does not contain"],
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

/// In float64, transformers gives NaN in rows without visible keys, as on the left of a padded decoder.
#[test]
fn a_twin_may_hold_anything_in_rows_that_the_mask_drops() {
    let mut exact = normals(1, 24);
    exact[..4].fill(f64::NAN);
    let draft = |mask: &[i64]| {
        Draft::with_hidden_states(&DIMS)
            .i64("attention_mask", &[2, 3], mask)
            .f32("layers.0.output", &DIMS, 1)
            .f64("layers.0.output.f64", &DIMS, &exact)
    };
    let fixture = Fixture::open(draft(&[0, 1, 1, 1, 1, 1]).write()).unwrap();
    let ours = fixture.tensor("layers.0.output").unwrap().clone();
    let produced = HashMap::from([("layers.0.output".to_string(), ours)]);
    assert!(verify(&fixture, &produced).passed);
    assert_refused(
        &draft(&[1, 1, 1, 1, 1, 0]),
        &["layers.0.output.f64", "4 element"],
    );
}

#[test]
fn an_input_file_may_hold_anything_besides_the_input() {
    let draft = Draft::with_hidden_states(&DIMS)
        .i64("attention_mask", &[2, 3], &[1, 1, 1, 1, 1, 0])
        .i64("input_ids", &[1, 9], &[7; 9])
        .i64("layers.0.output", &[1], &[1])
        .f64("layers.1.output.f64", &DIMS, &[f64::NAN; 24])
        .f32("grads.w", &[4, 0], 1);
    let input = Fixture::open_input(draft.write()).unwrap();
    assert_eq!(values(input.attention_mask().unwrap())[4..], [1.0, 0.0]);
    assert!(input.stages().is_empty() && input.gradients().is_empty());
    let error = Fixture::open_input(draft.i64("grad_output", &[1], &[1]).write()).unwrap_err();
    assert!(error.to_string().contains("grad_output"), "{error}");
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
                let _ = verify(&fixture, &HashMap::new());
            }
        }
    }
}
