//! The tolerance is as wide as PyTorch's own error gives reason for, and no wider.

use candle_blocks::verify::{Basis, Comparer, Comparison, Expected, KeptRows, Outcome, compare};
use candle_core::{DType, Device, Tensor};
use half::bf16;

use crate::planted::{Case, normals};

const DIMS: [usize; 3] = [2, 5, 8];
const WIDTH: usize = DIMS[2];

#[test]
fn a_good_result_passes_and_leaves_the_tolerance_tight() {
    for seed in 0..50 {
        let case = Case::new(&DIMS, 1.0, seed);
        let found = compare("x", &case.tensor(&case.ours()), &case.expected, None);
        assert!(found.passed(), "{found:?}");
        let tolerance = found.tolerance.unwrap();
        assert_eq!(tolerance.basis, Basis::TorchError);
        // Two-sided: it is neither useless because wide, nor unused because nothing was measured.
        assert!(tolerance.worst < 1e-4 * case.largest());
        assert!(found.share_used > 0.05, "{found:?}");
        assert!(found.max_abs > 0.0 && found.max_rel > 0.0);
    }
}

#[test]
fn errors_of_nearly_twice_pytorchs_pass_and_clearly_more_fail() {
    // PyTorch's error is made a thousand ulp, so that the 4 ulp on top do not matter.
    let case = Case::with_error(&DIMS, 1.0, 3, 1000.0);
    let at = |factor: f64| {
        let exact = case.expected.exact().unwrap();
        let error = (case.expected.value().to_dtype(DType::F64)? - exact)?;
        let ours = (exact + (error * factor)?)?;
        Ok::<_, candle_core::Error>(Comparer::new().with_precision(DType::F32).compare(
            "x",
            &ours,
            &case.expected,
        ))
    };
    for factor in [1.0, -1.0, 1.9, -1.9] {
        let found = at(factor).unwrap();
        assert!(found.passed(), "{factor}: {found:?}");
        assert!((found.ratio.unwrap() - f64::abs(factor)).abs() < 1e-6);
    }
    for factor in [2.1, -2.1, 10.0] {
        assert!(!at(factor).unwrap().passed(), "{factor}");
    }
}

#[test]
fn small_values_get_a_small_tolerance() {
    for scale in [1e-8, 1e-30, 1e20] {
        let case = Case::new(&DIMS, scale, 7);
        let ours = case.tensor(&case.ours());
        assert!(compare("x", &ours, &case.expected, None).passed());
        let wrong = (ours * 1.001).unwrap();
        let found = compare("x", &wrong, &case.expected, None);
        assert_eq!(found.outcome, Outcome::BeyondTolerance, "{scale}");
    }
}

#[test]
fn zeros_are_expected_to_be_zero() {
    let zeros = Tensor::zeros((3, 4), DType::F32, &Device::Cpu).unwrap();
    let expected = Expected::new(zeros.clone(), Some(zeros.to_dtype(DType::F64).unwrap())).unwrap();
    let exact = compare("x", &zeros, &expected, None);
    assert!(exact.passed() && exact.max_rel == 0.0);
    let found = compare("x", &(zeros + 1e-30).unwrap(), &expected, None);
    assert_eq!(found.outcome, Outcome::BeyondTolerance);
}

#[test]
fn one_huge_activation_does_not_hide_a_small_error_elsewhere() {
    let mut exact = normals(1, 4096);
    exact[77] = 3000.0;
    let dims = [4, 32, 32];
    let case = Case::from_exact(&dims, exact.clone(), 2, 1.0);
    // PyTorch's error in the huge one is in proportion to it, and so is the tolerance of the worst.
    let mut torch: Vec<f32> = case
        .expected
        .value()
        .flatten_all()
        .unwrap()
        .to_vec1()
        .unwrap();
    torch[77] = 3000.001;
    let expected = Expected::new(case.tensor(&torch), case.expected.exact().cloned()).unwrap();
    assert!(compare("x", &case.tensor(&case.ours()), &expected, None).passed());
    let mut ours: Vec<f32> = case.ours().iter().map(|v| v + 1e-4).collect();
    ours[77] = 3000.0;
    let found = compare("x", &case.tensor(&ours), &expected, None);
    assert_eq!(
        found.n_mismatched, 0,
        "the worst element alone would not tell"
    );
    assert_eq!(found.outcome, Outcome::TypicallyBeyondTolerance);
    assert!(found.share_used > 1.0);
}

#[test]
fn pytorchs_error_in_dropped_rows_does_not_widen_the_tolerance() {
    let mask = Tensor::new(&[[1u8, 1, 1, 1, 1], [1, 1, 1, 1, 0]], &Device::Cpu).unwrap();
    let rows = KeptRows::from_mask(&mask).unwrap();
    let case = Case::new(&DIMS, 1.0, 5);
    let mut torch = case.torch();
    torch[9 * WIDTH] += 100.0;
    let expected = Expected::new(case.tensor(&torch), case.expected.exact().cloned()).unwrap();
    let mut ours = case.ours();
    ours[7 * WIDTH + 3] += 1e-3;
    let found = compare("x", &case.tensor(&ours), &expected, Some(&rows));
    assert_eq!(found.worst.as_ref().unwrap().index, [1, 2, 3]);
    assert!(!found.passed());
}

#[test]
fn without_a_twin_the_tolerance_is_a_model_and_still_tight() {
    let case = Case::new(&DIMS, 1.0, 5);
    let expected = Expected::new(case.expected.value().clone(), None).unwrap();
    let ours = case.tensor(&case.ours());
    let found = compare("x", &ours, &expected, None);
    assert!(found.passed(), "{found:?}");
    let tolerance = found.tolerance.unwrap();
    assert_eq!(tolerance.basis, Basis::GrowthModel);
    assert_eq!((found.ratio, tolerance.torch_error), (None, None));
    assert!(tolerance.worst < 1e-4 * case.largest());
    assert!(!compare("x", &(&ours * 1.001).unwrap(), &expected, None).passed());
    let deeper = compare("x", &ours, &expected.with_depth(12), None);
    let deeper = deeper.tolerance.unwrap().worst;
    assert!(deeper > tolerance.worst && deeper < 1e-4 * case.largest());
}

#[test]
fn a_run_in_a_coarser_type_gets_pytorchs_error_scaled() {
    let case = Case::new(&DIMS, 1.0, 5);
    let exact = case.expected.exact().unwrap();
    for dtype in [DType::BF16, DType::F16] {
        let rounded = exact.to_dtype(dtype).unwrap();
        let found = compare("x", &rounded, &case.expected, None);
        assert!(found.passed(), "{found:?}");
        assert_eq!(found.tolerance.unwrap().basis, Basis::ScaledTorchError);
        let wrong = (exact * 1.5).unwrap().to_dtype(dtype).unwrap();
        assert!(!compare("x", &wrong, &case.expected, None).passed());
        // Computed in the coarse type, kept in f32.
        let found = Comparer::new().with_precision(dtype).compare(
            "x",
            &rounded.to_dtype(DType::F32).unwrap(),
            &case.expected,
        );
        assert!(found.passed());
    }
    let f32_error = compare("x", case.expected.value(), &case.expected, None);
    let in_bf16 = exact.to_dtype(DType::BF16).unwrap();
    let bf16_error = compare("x", &in_bf16, &case.expected, None);
    let scale = bf16::EPSILON.to_f64() / f64::from(f32::EPSILON);
    let torch_error = |found: &Comparison| found.tolerance.unwrap().torch_error.unwrap();
    assert_eq!(torch_error(&bf16_error), scale * torch_error(&f32_error));
}

#[test]
fn a_run_in_double_precision_must_be_better_than_single() {
    let case = Case::new(&DIMS, 1.0, 5);
    let exact = case.expected.exact().unwrap();
    let found = compare("x", exact, &case.expected, None);
    assert!(found.passed());
    assert_eq!(found.tolerance.unwrap().basis, Basis::ScaledTorchError);
    let single = exact
        .to_dtype(DType::F32)
        .unwrap()
        .to_dtype(DType::F64)
        .unwrap();
    assert!(!compare("x", &single, &case.expected, None).passed());
}

#[test]
fn a_fixture_in_bf16_demands_no_more_than_pytorchs_bf16() {
    let case = Case::new(&DIMS, 1.0, 5);
    let exact = case.expected.exact().unwrap();
    let value = exact.to_dtype(DType::BF16).unwrap();
    let expected = Expected::new(value.clone(), Some(exact.clone())).unwrap();
    let found = compare("x", &value, &expected, None);
    assert!(found.passed());
    assert_eq!(found.tolerance.unwrap().basis, Basis::TorchError);
    assert!(!compare("x", &(value * 1.1).unwrap(), &expected, None).passed());
}

#[test]
fn a_twin_of_a_double_says_nothing_about_its_error() {
    let case = Case::new(&DIMS, 1.0, 5);
    let exact = case.expected.exact().unwrap();
    let expected = Expected::new(exact.clone(), Some(exact.clone())).unwrap();
    let found = compare("x", &case.tensor(&case.ours()), &expected, None);
    assert_eq!(found.tolerance.unwrap().basis, Basis::GrowthModel);
    assert!(found.passed());
}
