//! Floating-point values with sixteen, eight and four bits, by their bit pattern.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Returns the f16 at a place in a block.
pub(super) fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Returns the value in OCP's E4M3 without infinities: a sign, four exponent bits (bias 7), three mantissa bits; NaN if all
/// are set.
/// <https://www.opencompute.org/documents/ocp-8-bit-floating-point-specification-ofp8-revision-1-0-2023-12-01-pdf-1>
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code >> 7 == 1 { -size } else { size }
}

/// Returns the value in OCP's E8M0: a power of two, `2^(code - 127)`; NaN if all bits are set.
/// <https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf>
fn e8m0(code: u8) -> f32 {
    match code {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22), // 2^-127 is subnormal
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// Values in OCP's E2M1, from the same document; the highest bit is the sign.
pub const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// Returns the integer nearest to a number of at most 2^22, rounding half to even. Unlike `round_ties_even`, it is not a
/// function call on CPUs with the oldest instruction set.
#[inline(always)]
pub fn whole(number: f32) -> f32 {
    /// Added to a small number, it leaves no bits for a fraction.
    const NO_FRACTION: f32 = 1.5 * (1 << 23) as f32;
    number + NO_FRACTION - NO_FRACTION
}

/// Returns E4M3 values in f32.
pub fn from_e4m3(codes: &[u8]) -> Vec<f32> {
    codes.iter().copied().map(e4m3).collect()
}

/// Returns E8M0 values in f32.
pub fn from_e8m0(codes: &[u8]) -> Vec<f32> {
    codes.iter().copied().map(e8m0).collect()
}

/// Returns f16 values in f32.
pub fn from_f16(numbers: &[f16]) -> Vec<f32> {
    let mut widened = vec![0.0; numbers.len()];
    numbers.convert_to_f32_slice(&mut widened);
    widened
}

/// Returns bfloat16 values in f32.
pub fn from_bf16(numbers: &[bf16]) -> Vec<f32> {
    let mut widened = vec![0.0; numbers.len()];
    numbers.convert_to_f32_slice(&mut widened);
    widened
}

/// Returns the first value that is NaN or infinite.
pub fn not_finite(numbers: &[f32]) -> Option<f32> {
    // A block without a branch for each value.
    let all = |block: &[f32]| {
        block
            .iter()
            .fold(true, |all, number| all & number.is_finite())
    };
    let block = numbers.chunks(256).find(|block| !all(block))?;
    block.iter().copied().find(|number| !number.is_finite())
}

/// Multiplies all values by a number.
pub fn multiply(numbers: &mut [f32], factor: f32) {
    numbers.iter_mut().for_each(|number| *number *= factor);
}

/// Divides all values by a number.
pub fn divide(numbers: &mut [f32], divisor: f32) {
    numbers.iter_mut().for_each(|number| *number /= divisor);
}

/// Adds all magnitudes.
pub fn sum_of_magnitudes(numbers: &[f32]) -> f64 {
    numbers.iter().map(|w| f64::from(w.abs())).sum()
}

/// Returns the value for every byte.
pub fn table(number: impl Fn(u8) -> f32) -> Box<[f32; 256]> {
    Box::new(std::array::from_fn(|code| number(code as u8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_rounds_halves_to_the_even_number() {
        for i in -1000..=1000 {
            let number = i as f32 / 8.0;
            assert_eq!(whole(number), number.round_ties_even(), "{number}");
        }
    }
}
