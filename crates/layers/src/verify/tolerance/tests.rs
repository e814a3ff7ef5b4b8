use super::*;

const F32: Precisions = Precisions {
    fixture: f32::EPSILON as f64,
    run: f32::EPSILON as f64,
};

#[test]
fn an_ulp_is_the_gap_to_the_next_float() {
    for x in [
        1.0f32,
        1.5,
        1.999_999_9,
        2.0,
        3.7e-8,
        12_345.678,
        f32::MAX / 2.0,
    ] {
        let gap = f64::from(x.next_up()) - f64::from(x);
        assert_eq!(ulp(f64::from(x), F32.fixture), gap, "{x}");
    }
    let below_two = 2f64.next_down();
    assert_eq!(ulp(below_two, f64::EPSILON), 2.0 - below_two);
    assert_eq!(ulp(0.0, F32.fixture), 0.0);
}

#[test]
fn the_tolerance_scales_with_the_values() {
    let exact = [0.3, -1.7, 0.9, 0.02];
    let torch = [0.300_000_01, -1.7, 0.899_999_95, 0.02];
    // A power of two, so that scaling is exact.
    let tiny = (-40f64).exp2();
    let scaled = |v: [f64; 4]| v.map(|x| x * tiny);
    let large = Tolerance::from_twin(&torch, &exact, F32, None).unwrap();
    let small = Tolerance::from_twin(&scaled(torch), &scaled(exact), F32, None).unwrap();
    assert_eq!(small.worst, large.worst * tiny);
    assert_eq!(small.typical.unwrap(), large.typical.unwrap() * tiny);
    let zero = Tolerance::from_twin(&[0.0; 4], &[0.0; 4], F32, None).unwrap();
    assert_eq!((zero.worst, zero.typical), (0.0, Some(0.0)));
    let zero = Tolerance::from_model(&[0.0; 4], F32, 4, 1, None).unwrap();
    assert_eq!(zero.worst, 0.0);
}

#[test]
fn a_run_as_precise_as_the_twin_is_granted_the_twins_own_error() {
    let (exact, torch) = ([1.0, -1.0, 1.0], [1.0, -1.0, 1.0 + 64.0 * F32.fixture]);
    let worst = |run| {
        let precisions = Precisions { run, ..F32 };
        let tolerance = Tolerance::from_twin(&torch, &exact, precisions, None).unwrap();
        tolerance.worst / run
    };
    assert_eq!(worst(F32.fixture), 2.0 * 64.0 + ALLOWED_ULPS);
    assert_eq!(worst(f64::EPSILON), 3.0 * 64.0 + ALLOWED_ULPS);
}

#[test]
fn bounds_that_zeros_would_pass_are_refused() {
    let in_bf16 = Precisions {
        run: half::bf16::EPSILON.to_f64(),
        ..F32
    };
    // PyTorch lost 9 of 23 bits; scaled to bf16 that is more bits than it has.
    let exact = [1.0, -1.0, 1.0];
    let torch = exact.map(|e| e * (1.0 + 512.0 * F32.fixture));
    assert!(Tolerance::from_twin(&torch, &exact, F32, None).is_some());
    assert_eq!(Tolerance::from_twin(&torch, &exact, in_bf16, None), None);
    // Noise in f32 already: the bound is as large as the noise.
    let noise = Tolerance::from_twin(&[1e-9, -2e-9], &[1e-18, 1e-18], F32, None).unwrap();
    assert!(noise.worst < 5e-9, "{noise:?}");
    // Without a twin, with an unrealistic depth.
    assert!(Tolerance::from_model(&exact, in_bf16, 768, 48, None).is_some());
    assert_eq!(
        Tolerance::from_model(&exact, F32, 768, usize::MAX, None),
        None
    );
}
