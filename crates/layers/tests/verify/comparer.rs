//! The comparer finds every planted fault, at its place, and passes what it should.
//!
//! Were the comparer wrong, every other test that uses it would prove nothing.

use arbtest::arbitrary;
use candle_blocks::verify::{Comparer, Comparison, Expected, KeptRows, Outcome, compare};
use candle_core::{DType, Device, Result, Tensor};

use crate::{cases::for_cases, planted::Case};

const DIMS: [usize; 3] = [2, 5, 8];
const WIDTH: usize = DIMS[2];
/// A place in the middle: `[1, 2, 3]`.
const PLACE: usize = (5 + 2) * WIDTH + 3;
const PLACE_INDEX: [usize; 3] = [1, 2, 3];

/// Overwrites one element in ours; the comparison must fail and name its index.
#[track_caller]
fn assert_found(fault: impl Fn(f32) -> f32) -> Comparison {
    let case = Case::new(&DIMS, 1.0, 7);
    let mut ours = case.ours();
    ours[PLACE] = fault(ours[PLACE]);
    let found = compare("layers.3.output", &case.tensor(&ours), &case.expected, None);
    assert_eq!(found.outcome, Outcome::BeyondTolerance, "{found:?}");
    assert_eq!(found.name, "layers.3.output");
    assert_eq!(found.worst.as_ref().unwrap().index, PLACE_INDEX);
    assert_eq!((found.n_mismatched, found.n_compared), (1, ours.len()));
    assert!(found.share_used > 1.0 && !found.passed());
    found
}

/// Replaces all of ours; the comparison must fail somewhere.
#[track_caller]
fn assert_fails(dims: &[usize], fault: impl Fn(&Tensor) -> Result<Tensor>) -> Comparison {
    let case = Case::new(dims, 1.0, 7);
    let found = compare(
        "x",
        &fault(&case.tensor(&case.ours())).unwrap(),
        &case.expected,
        None,
    );
    assert!(!found.passed(), "{found:?}");
    found
}

#[test]
fn the_truth_itself_and_pytorchs_own_result_pass() {
    let case = Case::new(&DIMS, 1.0, 1);
    let torch = compare("x", case.expected.value(), &case.expected, None);
    assert!(torch.passed());
    assert_eq!(torch.ratio, Some(1.0));
    let truth = Comparer::new().with_precision(DType::F32).compare(
        "x",
        case.expected.exact().unwrap(),
        &case.expected,
    );
    assert!(truth.passed());
    assert_eq!(
        (truth.max_abs, truth.share_used, truth.ratio),
        (0.0, 0.0, Some(0.0))
    );
}

#[test]
fn nan_is_found() {
    let found = assert_found(|_| f32::NAN);
    assert_eq!(
        (found.max_abs, found.max_rel),
        (f64::INFINITY, f64::INFINITY)
    );
    assert!(found.worst.unwrap().ours.is_nan());
}

#[test]
fn infinities_are_found() {
    assert_eq!(assert_found(|_| f32::INFINITY).max_abs, f64::INFINITY);
    assert_eq!(assert_found(|_| f32::NEG_INFINITY).max_abs, f64::INFINITY);
}

#[test]
fn one_flipped_sign_is_found() {
    assert_found(|v| -v);
}

#[test]
fn one_zeroed_element_is_found() {
    assert_found(|_| 0.0);
}

#[test]
fn all_nan_is_counted_and_the_first_is_named() {
    let found = assert_fails(&DIMS, |x| x.affine(f64::NAN, 0.0));
    assert_eq!(found.n_mismatched, 2 * 5 * WIDTH);
    assert_eq!(found.worst.unwrap().index, [0, 0, 0]);
}

#[test]
fn faults_of_the_whole_tensor_are_found() {
    let beyond = |fault: fn(&Tensor) -> Result<Tensor>| {
        let found = assert_fails(&DIMS, fault);
        assert_eq!(found.outcome, Outcome::BeyondTolerance);
        assert!(found.n_mismatched > found.n_compared / 2, "{found:?}");
        assert!(found.worst.is_some());
    };
    beyond(|x| x * 1.001);
    beyond(|x| x.neg());
    beyond(|x| x.zeros_like());
    beyond(|x| x + 1e-4);
    // Rounded to bf16 on the way, though it arrives as f32.
    beyond(|x| x.to_dtype(DType::BF16)?.to_dtype(DType::F32));
}

#[test]
fn swapped_rows_are_found_in_one_of_them() {
    let found = assert_fails(&DIMS, |x| {
        let order = Tensor::new(&[0u32, 1, 4, 3, 2], &Device::Cpu)?;
        x.index_select(&order, 1)
    });
    assert!([2, 4].contains(&found.worst.unwrap().index[1]));
    assert!(found.n_mismatched <= 2 * 2 * WIDTH);
}

#[test]
fn a_transposed_square_matrix_is_found_and_a_strided_view_of_the_right_one_is_not_a_fault() {
    assert_fails(&[8, 8], |x| x.t());
    let case = Case::new(&[8, 8], 1.0, 7);
    let strided = case.tensor(&case.ours()).t().unwrap().contiguous().unwrap();
    let strided = strided.t().unwrap();
    assert!(!strided.is_contiguous());
    assert!(compare("x", &strided, &case.expected, None).passed());
}

#[test]
fn wrong_shapes_are_failures_that_tell_both_shapes() {
    let mismatch = |found: Vec<usize>| Outcome::ShapeMismatch {
        expected: DIMS.to_vec(),
        found,
    };
    let truncated = assert_fails(&DIMS, |x| x.narrow(1, 0, 4));
    assert_eq!(truncated.outcome, mismatch(vec![2, 4, 8]));
    let reshaped = assert_fails(&DIMS, |x| x.reshape((5, 2, 8)));
    assert_eq!(reshaped.outcome, mismatch(vec![5, 2, 8]));
    let flat = assert_fails(&DIMS, |x| x.flatten_all());
    assert_eq!(flat.outcome, mismatch(vec![80]));
    assert_eq!((flat.max_abs, flat.n_compared), (f64::INFINITY, 0));
}

#[test]
fn integers_are_the_wrong_type() {
    let found = assert_fails(&DIMS, |x| x.to_dtype(DType::U32));
    assert!(matches!(found.outcome, Outcome::WrongDType { found, .. } if found == "u32"));
}

#[test]
fn a_coarser_type_than_the_run_states_is_the_wrong_type() {
    let case = Case::new(&DIMS, 1.0, 7);
    let ours = case.tensor(&case.ours()).to_dtype(DType::BF16).unwrap();
    let found = Comparer::new()
        .with_precision(DType::F32)
        .compare("x", &ours, &case.expected);
    let expected = Outcome::WrongDType {
        expected: "f32 or finer".to_string(),
        found: "bf16".to_string(),
    };
    assert_eq!(found.outcome, expected);
}

#[test]
fn infinity_and_nan_must_be_where_pytorch_has_them() {
    let case = Case::new(&DIMS, 1.0, 5);
    let mut torch = case.torch();
    (torch[0], torch[1], torch[2]) = (f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
    let expected = Expected::new(case.tensor(&torch), case.expected.exact().cloned()).unwrap();
    let mut right = case.ours();
    right[..3].copy_from_slice(&torch[..3]);
    let found = compare("x", &case.tensor(&right), &expected, None);
    assert!(found.passed(), "{found:?}");
    assert_eq!((found.n_non_finite, found.n_compared), (3, right.len()));

    let wrong = [
        (0, f32::NEG_INFINITY),
        (1, f32::INFINITY),
        (0, f32::NAN),
        (2, f32::INFINITY),
        (2, 0.0),
        (1, f32::MIN),
    ];
    for (place, value) in wrong {
        let mut ours = right.clone();
        ours[place] = value;
        let found = compare("x", &case.tensor(&ours), &expected, None);
        assert_eq!(found.worst.as_ref().unwrap().index, [0, 0, place]);
        assert_eq!((found.n_mismatched, found.max_abs), (1, f64::INFINITY));
    }
}

#[test]
fn a_twin_that_would_make_pytorchs_error_infinite_is_refused() {
    let case = Case::new(&DIMS, 1.0, 5);
    for poison in [f64::INFINITY, f64::NAN] {
        let mut exact = case.exact.clone();
        exact[9] = poison;
        let exact = Tensor::from_vec(exact, &DIMS, &Device::Cpu).unwrap();
        let error = Expected::new(case.expected.value().clone(), Some(exact)).unwrap_err();
        assert!(error.to_string().contains("1 element"), "{error}");
    }
}

#[test]
fn nothing_compared_is_never_a_pass() {
    let case = Case::new(&DIMS, 1.0, 5);
    let ours = case.tensor(&case.ours());
    let none = Tensor::zeros((2, 5), DType::U8, &Device::Cpu).unwrap();
    let dropped = compare(
        "x",
        &ours,
        &case.expected,
        Some(&KeptRows::from_mask(&none).unwrap()),
    );
    assert_eq!(dropped.outcome, Outcome::NothingCompared);

    let empty = Tensor::zeros((2, 0), DType::F32, &Device::Cpu).unwrap();
    let expected = Expected::new(empty.clone(), None).unwrap();
    assert_eq!(
        compare("x", &empty, &expected, None).outcome,
        Outcome::NothingCompared
    );

    let nan = Tensor::full(f32::NAN, (2, 3), &Device::Cpu).unwrap();
    let expected = Expected::new(nan.clone(), None).unwrap();
    assert_eq!(
        compare("x", &nan, &expected, None).outcome,
        Outcome::NothingCompared
    );
}

#[test]
fn faults_in_dropped_rows_pass_and_in_kept_rows_fail() {
    let mask = Tensor::new(&[[1u8, 1, 1, 0, 0], [1, 1, 1, 1, 0]], &Device::Cpu).unwrap();
    let rows = KeptRows::from_mask(&mask).unwrap();
    let case = Case::new(&DIMS, 1.0, 5);
    let at = |b: usize, s: usize, name: &str| {
        let mut ours = case.ours();
        ours[(b * DIMS[1] + s) * WIDTH] = f32::NAN;
        compare(name, &case.tensor(&ours), &case.expected, Some(&rows))
    };
    for (b, s) in [(0, 3), (0, 4), (1, 4)] {
        for name in ["layers.0.output", "grads.hidden_states"] {
            let found = at(b, s, name);
            assert!(found.passed(), "{found:?}");
            assert_eq!(found.n_compared, 7 * WIDTH);
        }
        // A parameter's gradient sums over all rows, whatever its shape.
        assert!(!at(b, s, "grads.h.0.weight").passed());
    }
    for (b, s) in [(0, 2), (1, 3)] {
        let found = at(b, s, "layers.0.output");
        assert_eq!(found.worst.unwrap().index, [b, s, 0]);
        assert_eq!(found.n_mismatched, 1);
    }
}

#[test]
fn any_single_element_beyond_the_tolerance_is_found_at_its_place() {
    for_cases(200, |draw| {
        let n_dims = draw.int_in_range(1..=4)?;
        let dims = (0..n_dims).map(|_| draw.int_in_range(1..=5usize));
        let dims: Vec<usize> = dims.collect::<arbitrary::Result<_>>()?;
        let place = draw.int_in_range(0..=dims.iter().product::<usize>() - 1)?;
        let (seed, exponent) = (draw.arbitrary()?, draw.int_in_range(-30..=29)?);
        let excess = match draw.arbitrary()? {
            true => 1.001,
            false => 1.001 + (1e6 - 1.001) * f64::from(draw.arbitrary::<u32>()?) / 2f64.powi(32),
        };
        let sign = *draw.choose(&[1.0, -1.0])?;

        let case = Case::new(&dims, 10f64.powi(exponent), seed);
        let comparer = Comparer::new().with_precision(DType::F32);
        let with_error = |share: f64| {
            let mut ours = case.exact.clone();
            let tolerance = comparer
                .compare("x", case.expected.exact().unwrap(), &case.expected)
                .tolerance
                .unwrap();
            ours[place] += sign * share * tolerance.worst;
            let ours = Tensor::from_vec(ours, dims.as_slice(), &Device::Cpu).unwrap();
            comparer.compare("x", &ours, &case.expected)
        };
        let found = with_error(excess);
        assert_eq!(found.outcome, Outcome::BeyondTolerance);
        assert_eq!(found.n_mismatched, 1);
        let index = found.worst.unwrap().index;
        let flat = index.iter().zip(&dims).fold(0, |flat, (i, d)| flat * d + i);
        assert_eq!(flat, place);
        assert!(with_error(0.999).passed());
        Ok(())
    });
}
