//! Floating-point values with sixteen, eight and four bits, by their bit pattern.

use half::f16;

/// Returns the f16 at a place in a block.
pub(crate) fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Returns the value of OCP's E4M3 without infinities: a sign, four exponent bits (bias 7), three mantissa bits; NaN if all
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

/// Returns the value of OCP's E8M0: a power of two, `2^(code - 127)`; NaN if all bits are set.
/// <https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf>
pub(super) fn e8m0(code: u8) -> f32 {
    match code {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22), // 2^-127 is subnormal
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// Values of OCP's E2M1, from the same document; the highest of four bits is the sign.
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

/// Returns the value for every byte.
pub(super) fn table(number: impl Fn(u8) -> f32) -> Box<[f32; 256]> {
    Box::new(std::array::from_fn(|code| number(code as u8)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Tensor};

    #[test]
    fn whole_rounds_halves_to_the_even_number() {
        for i in -1000..=1000 {
            let number = i as f32 / 8.0;
            assert_eq!(whole(number), number.round_ties_even(), "{number}");
        }
    }

    #[test]
    fn e4m3_is_candles() {
        let codes: Vec<u8> = (0..=255).collect();
        let theirs = Tensor::from_raw_buffer(&codes, DType::F8E4M3, &[256], &Device::Cpu).unwrap();
        let theirs = theirs
            .to_dtype(DType::F32)
            .unwrap()
            .to_vec1::<f32>()
            .unwrap();
        for (code, theirs) in codes.into_iter().zip(theirs) {
            let ours = e4m3(code);
            let is_one = ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
            assert!(is_one, "{code}: {ours}, expected {theirs}");
        }
    }
}
