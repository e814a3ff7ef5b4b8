//! Errors in narrow formats' products, compared with f64 products of unrounded operands. Also NaN and infinities.

use super::*;

/// Returns `a [m, k]` times the transposed `w [n, k]` in f64, and each element's tolerance.
///
/// `roundings` returns each value's maximum rounding error in a row or column. By Hoeffding's inequality, such
/// errors' sum exceeds `λ` times the root of their squares' sum less often than `2·exp(-λ²/2)`. With `λ = 4` that is
/// once in 1500. Roundings spread over the interval rather than lie at its ends, so that about half is used.
/// Roundings in f32 sums are far smaller.
fn reference(
    a: &[f32],
    w: &[f32],
    k: usize,
    row_roundings: impl Fn(&[f32]) -> Vec<f64>,
    column_roundings: impl Fn(&[f32]) -> Vec<f64>,
) -> Vec<(f64, f64)> {
    let mut elements = Vec::new();
    for a in a.chunks(k) {
        let a_errors = row_roundings(a);
        for w in w.chunks(k) {
            let w_errors = column_roundings(w);
            let (mut sum, mut squares) = (0.0, 0.0);
            for t in 0..k {
                let (a, w) = (f64::from(a[t]), f64::from(w[t]));
                sum += a * w;
                squares += (a * w_errors[t]).powi(2)
                    + (w * a_errors[t]).powi(2)
                    + (a_errors[t] * w_errors[t]).powi(2);
            }
            elements.push((sum, 4.0 * squares.sqrt()));
        }
    }
    elements
}

/// Returns half a unit in the last place.
fn bf16_roundings(x: &[f32]) -> Vec<f64> {
    let unit = bf16::EPSILON.to_f64() / 2.0;
    x.iter().map(|x| f64::from(x.abs()) * unit).collect()
}

/// Returns half a unit in the last place, and for subnormal values half their distance.
fn f16_roundings(x: &[f32]) -> Vec<f64> {
    let unit = f16::EPSILON.to_f64() / 2.0;
    x.iter()
        .map(|x| (f64::from(x.abs()) * unit).max(2f64.powi(-25)))
        .collect()
}

/// Returns half a step. A row chunk has 254 steps over a range that includes zero.
fn int8_row_roundings(row: &[f32]) -> Vec<f64> {
    half_steps(row, i8::CHUNK, |chunk| {
        let extreme = |of: fn(f32, f32) -> f32| f64::from(chunk.iter().copied().fold(0.0, of));
        (extreme(f32::max) - extreme(f32::min)) / 254.0
    })
}

/// Returns half a step. A column chunk has 127 steps from zero to its largest magnitude. The step is rounded up to
/// bfloat16.
fn int8_column_roundings(column: &[f32]) -> Vec<f64> {
    half_steps(column, i8::CHUNK, |chunk| {
        let largest = chunk.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        f64::from(largest) / 127.0 * (1.0 + bf16::EPSILON.to_f64())
    })
}

/// Returns half a step. A group of a row has 127 steps from zero to its largest magnitude.
fn int4_row_roundings(row: &[f32], group: usize) -> Vec<f64> {
    half_steps(row, group, |chunk| {
        let largest = chunk.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        f64::from(largest) / 127.0
    })
}

/// Returns half a step. A group of a column has 15 steps from its least to its largest value. The search errs less.
fn int4_column_roundings(column: &[f32], group: usize) -> Vec<f64> {
    half_steps(column, group, |chunk| {
        let of = |of: fn(f32, f32) -> f32| chunk.iter().copied().reduce(of).map_or(0.0, f64::from);
        (of(f32::max) - of(f32::min)) / 15.0
    })
}

fn half_steps(x: &[f32], chunk: usize, step: impl Fn(&[f32]) -> f64) -> Vec<f64> {
    let of = |chunk: &[f32]| vec![step(chunk) / 2.0; chunk.len()];
    x.chunks(chunk).flat_map(of).collect()
}

/// Returns the largest error relative to the tolerance.
fn share(y: &[f32], reference: &[(f64, f64)]) -> f64 {
    assert_eq!(y.len(), reference.len());
    let shares = y.iter().zip(reference);
    let shares = shares.map(|(&y, (sum, allowed))| (f64::from(y) - sum).abs() / allowed);
    shares.fold(
        0.0,
        |worst, share| if share <= worst { worst } else { share },
    )
}

const SIZES: &[(usize, usize, usize)] = if cfg!(miri) {
    &[(2, 3, 140)]
} else {
    &[
        (20, 50, 60),
        (16, 80, 384),
        (13, 60, 768),
        (5, 40, 3072),
        (9, 50, 2001),
    ]
};

#[test]
fn errors_against_f64_are_within_the_rounding_of_operands() {
    for &(m, n, k) in SIZES {
        let (mut a, mut w) = (random(m * k, 3), random(n * k, 4));
        // Some features and weights are much larger than the others, as in trained models.
        for row in a.chunks_mut(k) {
            row[7] *= 60.0;
        }
        for column in w.chunks_mut(k) {
            column[k - 1] *= 60.0;
        }
        let view = View::row_major(&a, m, k);
        let b = View::row_major(&w, n, k).transposed();
        let in_f16 = reference(&a, &w, k, |row| vec![0.0; row.len()], f16_roundings);
        let in_bf16 = reference(&a, &w, k, bf16_roundings, bf16_roundings);
        let in_int8 = reference(&a, &w, k, int8_row_roundings, int8_column_roundings);
        let [in_32, in_64, in_128] = [32, 64, 128].map(|group| {
            let (row, column) = (int4_row_roundings, int4_column_roundings);
            reference(&a, &w, k, |x| row(x, group), |w| column(w, group))
        });
        for isa in Isa::levels() {
            for (name, y, exact) in [
                ("f16", product::<f16>((isa, ()), view, b, 14), &in_f16),
                ("bf16", product::<bf16>((isa, ()), view, b, 14), &in_bf16),
                ("int8", product::<i8>((isa, ()), view, b, 14), &in_int8),
                (
                    "int4",
                    product::<Quantized<4>>((isa, ScaleLayout::int4(32)), view, b, 14),
                    &in_32,
                ),
                (
                    "int4",
                    product::<Quantized<4>>((isa, ScaleLayout::int4(64)), view, b, 14),
                    &in_64,
                ),
                (
                    "int4",
                    product::<Quantized<4>>((isa, ScaleLayout::int4(128)), view, b, 14),
                    &in_128,
                ),
            ] {
                assert_share(
                    share(&y, exact),
                    0.2,
                    format_args!("{name} {isa} {m}x{n}x{k}"),
                );
            }
        }
    }
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

/// Checks that one non-finite element affects only its row or column.
fn spoils_its_own<F: WithKernel<Element = f32>>(
    layout: F::Layout,
    spoilt: f32,
    is_spoilt: fn(f32) -> bool,
) {
    let (m, n, k) = (5, 7, 300);
    let (a, w) = (random(m * k, 5), random(n * k, 6));
    fn b(w: &[f32]) -> View<'_, f32> {
        View::row_major(w, w.len() / 300, 300).transposed()
    }
    for isa in Isa::levels() {
        let y = product::<F>((isa, layout), View::row_major(&a, m, k), b(&w), 14);
        for at in [0, 127, 128, 299] {
            let mut a_spoilt = a.clone();
            a_spoilt[2 * k + at] = spoilt;
            let found = product::<F>((isa, layout), View::row_major(&a_spoilt, m, k), b(&w), 14);
            let mut w_spoilt = w.clone();
            w_spoilt[3 * k + at] = spoilt;
            let transposed =
                product::<F>((isa, layout), View::row_major(&a, m, k), b(&w_spoilt), 14);
            for i in 0..m * n {
                for (found, is_bad) in [(found[i], i / n == 2), (transposed[i], i % n == 3)] {
                    let what = format!("{isa} {spoilt} at {at}, element {i}: {found}");
                    assert_eq!(is_spoilt(found), is_bad, "{what}");
                    assert!(is_bad || found.to_bits() == y[i].to_bits(), "{what}");
                }
            }
        }
    }
}

#[test]
fn nan_and_infinity_affect_only_their_row_or_column() {
    spoils_its_own::<f16>((), f32::NAN, f32::is_nan);
    spoils_its_own::<f16>((), f32::from_bits(0x7f80_0001), f32::is_nan);
    spoils_its_own::<f16>((), f32::NEG_INFINITY, |y| !y.is_finite());
    spoils_its_own::<bf16>((), f32::NAN, f32::is_nan);
    // A NaN that would round to infinity.
    spoils_its_own::<bf16>((), f32::from_bits(0x7f80_0001), f32::is_nan);
    spoils_its_own::<bf16>((), f32::NEG_INFINITY, |y| !y.is_finite());
    for spoilt in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        spoils_its_own::<i8>((), spoilt, f32::is_nan);
        for group in GROUPS {
            spoils_its_own::<Quantized<4>>(ScaleLayout::int4(group), spoilt, f32::is_nan);
        }
    }
}

#[test]
fn zeros_and_values_below_the_smallest_step_give_zeros() {
    let (n, k) = (3, 200);
    let w = random(n * k, 7);
    let b = View::row_major(&w, n, k).transposed();
    for isa in Isa::levels() {
        for x in [0.0, -0.0, f32::MIN_POSITIVE, -1e-45] {
            let small = vec![x; k];
            let a = View::row_major(&small, 1, k);
            for y in [
                product::<i8>((isa, ()), a, b, 14),
                product::<Quantized<4>>((isa, ScaleLayout::int4(64)), a, b, 14),
            ] {
                assert_eq!(bits(&y), [0; 3], "{isa} {x:e}: {y:?}");
            }
        }
        let zeros = product::<bf16>((isa, ()), View::row_major(&vec![0.0; k], 1, k), b, 14);
        assert_eq!(bits(&zeros), [0; 3]);
    }
}

#[test]
fn the_smallest_and_largest_representable_values_keep_their_digits() {
    for x in [2f32.powi(-100), 1e-20, 1e20, 2f32.powi(100)] {
        for isa in Isa::levels() {
            // 127 steps of 1/8192, a scale that bfloat16 holds exactly.
            let (a, w) = (vec![x; 130], vec![127.0f32 / 8192.0; 130]);
            let b = View::row_major(&w, 1, 130).transposed();
            let a = View::row_major(&a, 1, 130);
            for y in [
                product::<i8>((isa, ()), a, b, 14)[0],
                product::<Quantized<4>>((isa, ScaleLayout::int4(64)), a, b, 14)[0],
            ] {
                let error = (y / (x * 130.0 * w[0]) - 1.0).abs();
                assert!(error < 1e-6, "{isa} {x:e}: {y:e}");
            }
        }
    }
}
