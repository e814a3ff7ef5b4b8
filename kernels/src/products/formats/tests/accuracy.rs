//! How far products of narrow numbers are from those of the numbers that were rounded, in f64; and what becomes
//! of NaN and infinities.

use super::*;

/// `a [m, k]` times the transpose of `w [n, k]` in f64, and the allowed error of each element.
///
/// Each rounding errs to either side by at most what `roundings` says of a row's or a column's terms.
/// By Hoeffding's inequality errors so bounded exceed `λ` times the root of the sum of their squares
/// less often than `2·exp(-λ²/2)`: with `λ = 4` once in 1500, and since roundings spread over the
/// interval rather than lie at its ends, about half of it is used. Roundings of f32 sums are far below.
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

/// Half a unit in the last place, as a share of the number.
fn bf16_roundings(x: &[f32]) -> Vec<f64> {
    let unit = bf16::EPSILON.to_f64() / 2.0;
    x.iter().map(|x| f64::from(x.abs()) * unit).collect()
}

/// As [`bf16_roundings`]; also half the distance of subnormal numbers.
fn f16_roundings(x: &[f32]) -> Vec<f64> {
    let unit = f16::EPSILON.to_f64() / 2.0;
    x.iter()
        .map(|x| (f64::from(x.abs()) * unit).max(2f64.powi(-25)))
        .collect()
}

/// Half a step, where a chunk of a row has 254 steps over the range of its numbers and zero.
fn int8_row_roundings(row: &[f32]) -> Vec<f64> {
    half_steps(row, i8::CHUNK, |chunk| {
        let extreme = |of: fn(f32, f32) -> f32| f64::from(chunk.iter().copied().fold(0.0, of));
        (extreme(f32::max) - extreme(f32::min)) / 254.0
    })
}

/// Half a step, where a chunk of a column has 127 steps from zero to its largest magnitude, each rounded up to
/// bfloat16.
fn int8_column_roundings(column: &[f32]) -> Vec<f64> {
    half_steps(column, i8::CHUNK, |chunk| {
        let largest = chunk.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        f64::from(largest) / 127.0 * (1.0 + bf16::EPSILON.to_f64())
    })
}

/// Half a step, where a group of a row has 127 steps from zero to its largest magnitude.
fn int4_row_roundings(row: &[f32], group: usize) -> Vec<f64> {
    half_steps(row, group, |chunk| {
        let largest = chunk.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        f64::from(largest) / 127.0
    })
}

/// Half a step, where a group of a column has 15 steps from its least to its largest number. The search errs less.
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

/// The largest share that is used of the allowed error.
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
fn errors_against_f64_are_those_of_rounding_the_operands() {
    for &(m, n, k) in SIZES {
        let (mut a, mut w) = (random(m * k, 3), random(n * k, 4));
        // As in trained models: some features are much larger than the others, and some weights.
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
                    product::<Coded<4>>((isa, GroupHeads::int4(32)), view, b, 14),
                    &in_32,
                ),
                (
                    "int4",
                    product::<Coded<4>>((isa, GroupHeads::int4(64)), view, b, 14),
                    &in_64,
                ),
                (
                    "int4",
                    product::<Coded<4>>((isa, GroupHeads::int4(128)), view, b, 14),
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

/// One element that is not finite spoils its row or column, as it should, and nothing else.
fn spoils_its_own<F: WithKernel<Number = f32>>(
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
fn nan_and_infinity_spoil_their_row_or_column_and_no_other() {
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
            spoils_its_own::<Coded<4>>(GroupHeads::int4(group), spoilt, f32::is_nan);
        }
    }
}

#[test]
fn zeros_and_numbers_too_small_to_tell_from_them_give_zeros() {
    let (n, k) = (3, 200);
    let w = random(n * k, 7);
    let b = View::row_major(&w, n, k).transposed();
    for isa in Isa::levels() {
        for x in [0.0, -0.0, f32::MIN_POSITIVE, -1e-45] {
            let small = vec![x; k];
            let a = View::row_major(&small, 1, k);
            for y in [
                product::<i8>((isa, ()), a, b, 14),
                product::<Coded<4>>((isa, GroupHeads::int4(64)), a, b, 14),
            ] {
                assert_eq!(bits(&y), [0; 3], "{isa} {x:e}: {y:?}");
            }
        }
        let zeros = product::<bf16>((isa, ()), View::row_major(&vec![0.0; k], 1, k), b, 14);
        assert_eq!(bits(&zeros), [0; 3]);
    }
}

#[test]
fn the_smallest_and_largest_numbers_that_are_told_apart_keep_their_digits() {
    for x in [2f32.powi(-100), 1e-20, 1e20, 2f32.powi(100)] {
        for isa in Isa::levels() {
            // 127 steps of 1/8192, a scale that bfloat16 holds exactly.
            let (a, w) = (vec![x; 130], vec![127.0f32 / 8192.0; 130]);
            let b = View::row_major(&w, 1, 130).transposed();
            let a = View::row_major(&a, 1, 130);
            for y in [
                product::<i8>((isa, ()), a, b, 14)[0],
                product::<Coded<4>>((isa, GroupHeads::int4(64)), a, b, 14)[0],
            ] {
                let error = (y / (x * 130.0 * w[0]) - 1.0).abs();
                assert!(error < 1e-6, "{isa} {x:e}: {y:e}");
            }
        }
    }
}
