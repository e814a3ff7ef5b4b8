//! Emulated tiles compared with sums computed by hand, with f64, and with real tiles if there are any.

use std::panic::{AssertUnwindSafe, catch_unwind};

use half::bf16;

use super::super::{amx::Amx, isa::Isa};
use super::*;
use crate::reference::{assert_share, random};

/// Rows of words, and the bfloat16 values that they hold.
type Words = [[u32; TILE]; TILE];

fn emulated() -> Option<AmxEmulated> {
    let tiles = AmxEmulated::new();
    if tiles.is_none() {
        println!("left out: {}", Isa::named("amx_emulated").unwrap_err());
    }
    tiles
}

/// Adds whole tiles' byte products to sums.
fn add_bytes<T: Tiles>(tiles: T, a: &Words, b: &Words, sums: &mut Words) {
    // SAFETY: whole tiles are configured, like the arrays.
    unsafe {
        tiles.configure(&TileShapes::of_rows([TILE as u8; TILES]));
        tiles.load(3, sums.as_ptr().cast(), 4 * TILE);
        tiles.load(5, a.as_ptr().cast(), 4 * TILE);
        tiles.load(RIGHT, b.as_ptr().cast(), 4 * TILE);
        tiles.multiply_add_bytes(3, 5);
        tiles.store(3, sums.as_mut_ptr().cast(), 4 * TILE);
    }
    tiles.release();
}

/// Adds the products of `rows` rows in `a` and the columns in `b` to sums.
fn add<T: Tiles>(tiles: T, rows: usize, a: &Words, b: &Words, sums: &mut [[f32; TILE]; TILE]) {
    let mut shapes = [rows as u8; TILES];
    shapes[RIGHT] = TILE as u8;
    // SAFETY: tiles with this row count are configured, and the arrays are whole tiles.
    unsafe {
        tiles.configure(&TileShapes::of_rows(shapes));
        tiles.load(0, sums.as_ptr().cast(), 4 * TILE);
        tiles.load(4, a.as_ptr().cast(), 4 * TILE);
        tiles.load(RIGHT, b.as_ptr().cast(), 4 * TILE);
        tiles.multiply_add(0, 4);
        tiles.store(0, sums.as_mut_ptr().cast(), 4 * TILE);
    }
    tiles.release();
}

/// Returns `sum` plus products for even and odd `k`. Each product is a power of two (or its negative) squared: the
/// value's sign and half its exponent.
fn sum_of(tiles: AmxEmulated, sum: f32, even: &[f64], odd: &[f64]) -> f32 {
    let (mut a, mut b) = ([[0; TILE]; TILE], [[0; TILE]; TILE]);
    for (terms, shift) in [(even, 0), (odd, 16)] {
        for (word, &term) in terms.iter().enumerate() {
            let root = term.abs().sqrt();
            let [left, right] = [root.copysign(term), root].map(bf16::from_f64);
            assert!(term.is_nan() || left.to_f64() * right.to_f64() == term);
            a[2][word] |= u32::from(left.to_bits()) << shift;
            b[word][3] |= u32::from(right.to_bits()) << shift;
        }
    }
    let mut sums = [[0.0; TILE]; TILE];
    sums[2][3] = sum;
    add(tiles, TILE, &a, &b, &mut sums);
    sums[2][3]
}

/// Returns `2^n`.
fn power(n: i32) -> f64 {
    2f64.powi(n)
}

#[test]
fn even_and_odd_terms_are_added_in_two_chains_that_meet_before_the_sum() {
    let Some(tiles) = emulated() else { return };
    let big = power(24);
    let sum = |sum: f32, even: &[f64], odd: &[f64]| sum_of(tiles, sum, even, odd);
    assert_eq!(sum(0.0, &[4.0, 0.0, 16.0], &[64.0]), 84.0);
    // A 1 is lost in 2^24, in this summation order.
    assert_eq!(sum(0.0, &[big, 1.0, -big], &[]), 0.0);
    assert_eq!(sum(0.0, &[big, -big, 1.0], &[]), 1.0);
    assert_eq!(sum(0.0, &[], &[big, 1.0, -big]), 0.0);
    // But not in the other chain's order.
    assert_eq!(sum(0.0, &[big, 0.0, -big], &[0.0, 1.0]), 1.0);
    // Two of them together are not lost in the sum.
    assert_eq!(sum(16777216.0, &[1.0], &[1.0]), 16777218.0);
    // A single one would be lost if it met the sum before the other chain.
    assert_eq!(sum(-16777216.0, &[big], &[1.0]), 0.0);
}

#[test]
fn a_product_and_its_addition_are_rounded_once() {
    let Some(tiles) = emulated() else { return };
    // (1 + 2^-7)^2 = 1 + 2^-6 + 2^-14, minus 1 + 2^-6.
    let (mut a, mut b) = ([[0; TILE]; TILE], [[0; TILE]; TILE]);
    let word = |low: f32, high: f32| {
        let bits = |x: f32| u32::from(bf16::from_f32(x).to_bits());
        bits(low) | bits(high) << 16
    };
    (a[0][0], b[0][0]) = (word(1.0078125, 0.0), word(1.0078125, 0.0));
    (a[0][1], b[1][0]) = (word(-1.015625, 0.0), word(1.0, 0.0));
    let mut sums = [[0.0; TILE]; TILE];
    add(tiles, 1, &a, &b, &mut sums);
    assert_eq!(sums[0][0], 2f32.powi(-14));
}

#[test]
fn subnormal_values_are_zeros_as_operands_and_as_results() {
    let Some(tiles) = emulated() else { return };
    let sum = |sum: f32, even: &[f64]| sum_of(tiles, sum, even, &[]).to_bits();
    let least = f32::MIN_POSITIVE.to_bits();
    // A subnormal sum, and a product below the normal range.
    assert_eq!(sum(1e-40, &[]), 0);
    assert_eq!(sum(f32::MIN_POSITIVE, &[]), least);
    assert_eq!(sum(0.0, &[power(-140)]), 0);
    assert_eq!(sum(0.0, &[power(-126)]), least);
    // 2^-126 minus 2^-128 is subnormal, and becomes zero.
    assert_eq!(sum(0.0, &[power(-126), -power(-128), power(-126)]), least);
    // A subnormal operand, times a large value.
    let (mut a, mut b) = ([[0; TILE]; TILE], [[0; TILE]; TILE]);
    (a[0][0], b[0][0]) = (0x0040, u32::from(bf16::from_f32(1e30).to_bits()));
    let mut sums = [[0.0; TILE]; TILE];
    add(tiles, 1, &a, &b, &mut sums);
    assert_eq!(sums[0][0].to_bits(), 0);
    a[0][0] = 0x0080;
    add(tiles, 1, &a, &b, &mut sums);
    assert!(sums[0][0] > 1e-8);
    // A value that became zero keeps its sign, if all have the same sign.
    let negative = [-power(-140); TILE];
    assert_eq!(sum_of(tiles, -0.0, &negative, &negative).to_bits(), 1 << 31);
}

#[test]
fn a_result_is_subnormal_as_if_exponents_had_no_least() {
    let Some(tiles) = emulated() else { return };
    let least = f32::MIN_POSITIVE;
    // 24 digits below 2^-126 are steps of 2^-150. Half a step rounds to even, which is up.
    for (below, expected) in [(-150, 0.0), (-152, least), (-160, least)] {
        let sum = |sign: f64| sum_of(tiles, 0.0, &[sign * power(-126), -sign * power(below)], &[]);
        assert_eq!((sum(1.0), sum(-1.0)), (expected, -expected), "2^{below}");
    }
}

#[test]
fn nan_and_infinity_affect_their_own_sums_only() {
    let Some(tiles) = emulated() else { return };
    let numbers = |seed| {
        let numbers = random::<f32>(2 * TILE * TILE, 0.0, 1.0, seed);
        packed(numbers.iter().map(|&x| bf16::from_f32(x).to_bits()))
    };
    let (a, b) = (numbers(1), numbers(2));
    let product = |a: &Words, b: &Words| {
        let mut sums = [[1.0; TILE]; TILE];
        add(tiles, TILE, a, b, &mut sums);
        sums
    };
    let whole = product(&a, &b);
    for (bad, is_bad) in [
        (bf16::NAN, f32::is_nan as fn(f32) -> bool),
        (bf16::INFINITY, |x| !x.is_finite()),
    ] {
        let spoilt = |mut words: Words| {
            words[5][7] = words[5][7] & 0xffff | u32::from(bad.to_bits()) << 16;
            words
        };
        // Word 7 in the left operand's row 5, and word 5 in the right operand's column 7.
        let (by_row, by_column) = (product(&spoilt(a), &b), product(&a, &spoilt(b)));
        for (at, &expected) in whole.as_flattened().iter().enumerate() {
            let (row, column) = (at / TILE, at % TILE);
            for (found, spoilt) in [
                (by_row[row][column], row == 5),
                (by_column[row][column], column == 7),
            ] {
                assert_eq!(is_bad(found), spoilt, "{bad} at {row}, {column}: {found}");
                assert!(spoilt || found.to_bits() == expected.to_bits());
            }
        }
    }
    assert!(sum_of(tiles, f32::INFINITY, &[-1.0], &[1.0]) == f32::INFINITY);
    assert!(sum_of(tiles, f32::NEG_INFINITY, &[], &[]) == f32::NEG_INFINITY);
    assert!(sum_of(tiles, f32::NAN, &[], &[]).is_nan());
    // 2^127 + 2^127 overflows.
    assert!(sum_of(tiles, 2f32.powi(127), &[power(126)], &[power(126)]) == f32::INFINITY);
}

/// Packs values into words, row by row.
fn packed(mut terms: impl Iterator<Item = u16>) -> Words {
    let mut term = || u32::from(terms.next().unwrap());
    std::array::from_fn(|_| std::array::from_fn(|_| term() | term() << 16))
}

#[test]
fn errors_against_f64_are_within_rounding() {
    let Some(tiles) = emulated() else { return };
    let numbers = |seed| {
        let numbers = random::<f32>(2 * TILE * TILE, 0.1, 1.0, seed);
        packed(numbers.iter().map(|&x| bf16::from_f32(x).to_bits()))
    };
    let (a, b) = (numbers(3), numbers(4));
    let before = random::<f32>(TILE * TILE, 0.0, 4.0, 5);
    let mut sums: [[f32; TILE]; TILE] = from_fn(|i| from_fn(|j| before[i * TILE + j]));
    add(tiles, TILE, &a, &b, &mut sums);
    // A rounding's error is at most a share `unit` of the rounded value, with either sign: Hoeffding's inequality,
    // with λ = 4.
    let unit = f64::from(f32::EPSILON) / 2.0;
    let mut worst: f64 = 0.0;
    for (at, sum) in sums.as_flattened().iter().enumerate() {
        let (i, j) = (at / TILE, at % TILE);
        let (mut total, mut squares) = (0.0, 0.0);
        for shift in [16, 0] {
            let number = |word: u32| f64::from(f32::from_bits(word << shift & 0xffff_0000));
            let mut chain = 0.0;
            for k in 0..TILE {
                chain += number(a[i][k]) * number(b[k][j]);
                squares += chain * chain;
            }
            total += chain;
        }
        squares += total * total;
        total += f64::from(before[at]);
        squares += total * total;
        worst = worst.max((f64::from(*sum) - total).abs() / (4.0 * unit * squares.sqrt()));
    }
    assert_share(worst, 0.2, "a tile's product");
}

/// Returns words with every byte.
fn all_bytes(seed: u64) -> Words {
    let mut state = seed;
    from_fn(|_| {
        from_fn(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 32) as u32
        })
    })
}

#[test]
fn signed_times_unsigned_bytes_are_added_in_wrapping_integers() {
    let Some(tiles) = emulated() else { return };
    let (a, b, before) = (all_bytes(1), all_bytes(2), all_bytes(3));
    let mut sums = before;
    add_bytes(tiles, &a, &b, &mut sums);
    for (i, j) in (0..TILE * TILE).map(|at| (at / TILE, at % TILE)) {
        let products = (0..4 * TILE).map(|k| {
            let byte = |word: u32| word.to_le_bytes()[k % 4];
            i64::from(byte(a[i][k / 4]) as i8) * i64::from(byte(b[k / 4][j]))
        });
        let sum = i64::from(before[i][j]) + products.sum::<i64>();
        assert_eq!(sums[i][j], sum as u32, "{i}, {j}");
    }
}

#[test]
fn tiles_have_their_configured_rows() {
    let Some(tiles) = emulated() else { return };
    let ones = [[0x3f80_3f80; TILE]; TILE];
    for rows in 1..=TILE {
        let mut sums = [[7.0; TILE]; TILE];
        add(tiles, rows, &ones, &ones, &mut sums);
        for (row, sums) in sums.iter().enumerate() {
            assert_eq!(
                *sums,
                [if row < rows { 39.0 } else { 7.0 }; TILE],
                "{row} of {rows}"
            );
        }
    }
}

#[test]
fn a_tile_that_is_not_configured_cannot_be_used() {
    let Some(tiles) = emulated() else { return };
    assert_eq!(tiles.shapes(), TileShapes::NONE);
    // SAFETY: the emulation checks its arguments.
    let refused = |tile| catch_unwind(AssertUnwindSafe(|| unsafe { tiles.zero(tile) })).is_err();
    assert!(refused(0));
    let shapes = TileShapes::of_rows([3, 0, 0, 0, 0, 0, 0, 0]);
    // SAFETY: shapes of `of_rows`.
    unsafe { tiles.configure(&shapes) };
    assert_eq!(tiles.shapes(), shapes);
    assert!(!refused(0));
    assert!(refused(1));
    tiles.release();
    assert_eq!(tiles.shapes(), TileShapes::NONE);
}

/// With real tiles, compares every kind of value bit by bit, except NaN payloads.
#[test]
fn the_emulation_has_the_bits_of_the_instructions() {
    let (Some(emulated), Some(amx)) = (emulated(), Amx::new()) else {
        return println!("left out: {:?}", Isa::named("amx"));
    };
    for seed in 0..40 {
        let (a, b, mut found) = (
            all_bytes(3 * seed),
            all_bytes(3 * seed + 1),
            all_bytes(3 * seed + 2),
        );
        let mut expected = found;
        add_bytes(amx, &a, &b, &mut found);
        add_bytes(emulated, &a, &b, &mut expected);
        assert_eq!(found, expected);
    }
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 33) as u32
    };
    // The smallest exponent and the exponent count: moderate values, all finite values, products near the smallest
    // normal value and near the largest one; some subnormal, some not finite.
    for (least, count) in [
        (120, 14),
        (0, 255),
        (60, 8),
        (56, 8),
        (186, 6),
        (0, 2),
        (254, 2),
    ] {
        for _ in 0..40 {
            let mut term = || {
                let bits = random();
                (bits & 0x807f | (least + (bits >> 16) % count) << 7) as u16
            };
            let mut words = || packed(std::iter::repeat_with(&mut term));
            let (a, b, c) = (words(), words(), words());
            let mut found = c.map(|row| row.map(f32::from_bits));
            let mut expected = found;
            add(amx, TILE, &a, &b, &mut found);
            add(emulated, TILE, &a, &b, &mut expected);
            for (found, expected) in found.as_flattened().iter().zip(expected.as_flattened()) {
                let same = found.to_bits() == expected.to_bits();
                assert!(
                    same || found.is_nan() && expected.is_nan(),
                    "{found:e}, {expected:e}"
                );
            }
        }
    }
}
