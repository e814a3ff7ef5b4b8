//! Arm's `bfdot` in plain Rust, after the architecture manual: the products, their sum and the accumulated sum are
//! each rounded to odd (an inexact result is truncated, and its last bit set). Subnormal values are zeros.

#[cfg(target_arch = "aarch64")]
use super::*;

/// Computes `sum + (a[0] · b[0] + a[1] · b[1])` for bfloat16 values.
pub fn bfdot(sum: f32, a: [f32; 2], b: [f32; 2]) -> f32 {
    let product = |i: usize| {
        // Exact: at most 16 digits, with exponents in f64's range.
        rounded_to_odd(flushed(a[i]) * flushed(b[i]), 0.0)
    };
    add(flushed(sum) as f32, add(product(0), product(1)))
}

/// Replaces a subnormal value by a zero with its sign.
fn flushed(x: f32) -> f64 {
    let x = if x.is_subnormal() { x * 0.0 } else { x };
    x.into()
}

fn add(a: f32, b: f32) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    let sum = a + b;
    // The addition's rounding error (Knuth 1969).
    let of_b = sum - a;
    rounded_to_odd(sum, (a - (sum - of_b)) + (b - of_b))
}

/// Rounds `x + rest` to odd, where `rest` is less than `x`'s last bit.
fn rounded_to_odd(x: f64, rest: f64) -> f32 {
    if !x.is_finite() || x == 0.0 {
        return x as f32;
    }
    // First in f64: its last bit records whether anything was truncated.
    let toward_zero = (rest < 0.0) == (x > 0.0);
    let bits = match rest == 0.0 {
        true => x.to_bits(),
        false => (x.to_bits() - u64::from(toward_zero)) | 1,
    };
    let cut = f64::from_bits(bits & !((1 << 29) - 1));
    if x.abs() >= 2f64.powi(128) {
        return f32::INFINITY.copysign(x as f32);
    }
    if cut.abs() < f64::from(f32::MIN_POSITIVE) {
        return 0f32.copysign(x as f32);
    }
    let is_inexact = bits & ((1 << 29) - 1) != 0;
    f32::from_bits((cut as f32).to_bits() | u32::from(is_inexact))
}

#[test]
fn the_written_out_dot_product_rounds_to_odd() {
    let above = |x: f32, ulps: u32| f32::from_bits(x.to_bits() + ulps);
    let (tiny, two) = (2f32.powi(-60), above(1.0, 2));
    for (sum, a, b, expected) in [
        (1.0, [2.0, 3.0], [4.0, 5.0], 24.0),
        // An inexact result has its last bit set, and is otherwise unchanged.
        (1.0, [tiny, 0.0], [tiny, 0.0], above(1.0, 1)),
        (two, [tiny, 0.0], [tiny, 0.0], above(1.0, 3)),
        (above(1.0, 1), [tiny, 0.0], [tiny, 0.0], above(1.0, 1)),
        (two, [-tiny, 0.0], [tiny, 0.0], above(1.0, 1)),
        (-two, [tiny, 0.0], [tiny, 0.0], -above(1.0, 1)),
        // Nearly two units are truncated.
        (two, [1.75 * 2f32.powi(-23), 0.0], [1.0, 0.0], above(1.0, 3)),
        // The products are added to each other first, and rounded: 1 + 2⁻⁴⁰ becomes 1 + 2⁻²³.
        (-1.0, [1.0, 2f32.powi(-40)], [1.0, 1.0], 2f32.powi(-23)),
        // Subnormal operands, products and sums become zeros with their sign.
        (
            1.0,
            [f32::from_bits(1 << 16), 0.0],
            [2f32.powi(126), 0.0],
            1.0,
        ),
        (f32::from_bits(5), [0.0; 2], [0.0; 2], 0.0),
        (0.0, [-2f32.powi(-70), 0.0], [2f32.powi(-70), 0.0], 0.0),
        (f32::MAX, [f32::MAX * 0.5, 0.0], [2.0, 0.0], f32::INFINITY),
    ] {
        let found = bfdot(sum, a, b);
        assert_eq!(
            found.to_bits(),
            expected.to_bits(),
            "{sum:e} {a:?} {b:?}: {found:e}"
        );
    }
}

/// A row with dot products, and three rows with matrix products.
#[cfg(target_arch = "aarch64")]
#[test]
fn the_instructions_for_bfloat16_have_the_written_out_bits_in_the_whole_range() {
    let Ok(isa) = Isa::named("neon_bf16") else {
        return println!("left out: this CPU lacks the instructions");
    };
    let (n, k) = (40, 7);
    let mut state = 1u64;
    let mut numbers = |len: usize, narrow: bool| -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            let bits = (state >> 48) as u16;
            // Exponents around 1, so that sums cancel. Otherwise any exponents: products may be subnormal or
            // overflow.
            let x = bf16::from_bits(if narrow { bits & 0x83ff | 0x3d00 } else { bits });
            if x.is_finite() { x.to_f32() } else { 1.0 }
        };
        (0..len).map(|_| next()).collect()
    };
    for round in 0..200 {
        let narrow = round % 2 == 0;
        let (a, w) = (numbers(3 * k, narrow), numbers(n * k, narrow));
        let b = View::row_major(&w, n, k).transposed();
        for rows in [1, 3] {
            let y = product::<bf16>((isa, ()), View::row_major(&a, 3, k), b, rows);
            assert!(!y.is_empty());
            for (at, &found) in y.iter().enumerate() {
                let (i, j) = (at / n, at % n);
                let expected = bf16::element(isa, (), &a[i * k..][..k], &w[j * k..][..k]);
                let same =
                    found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
                assert!(
                    same,
                    "{rows} rows, {i} {j}: {found:e}, expected {expected:e}"
                );
            }
        }
    }
}
