//! Dequantizes GGUF's blocks, as ggml defines them (<https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c>).

use half::bf16;

use super::numbers::{E2M1, e4m3, half};
use super::{BlockKind, grids};

/// Appends the dequantized values in whole blocks.
pub fn decode(kind: BlockKind, bytes: &[u8], numbers: &mut Vec<f32>) {
    let (_, size) = kind.block();
    for block in bytes.chunks_exact(size) {
        match kind {
            BlockKind::F32 => numbers.push(f32::from_le_bytes(array(block))),
            BlockKind::F16 => numbers.push(half(block, 0)),
            BlockKind::Bf16 => numbers.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            BlockKind::F64 => numbers.push(f64::from_le_bytes(array(block)) as f32),
            BlockKind::I8 => numbers.push(f32::from(block[0] as i8)),
            BlockKind::I16 => numbers.push(f32::from(i16::from_le_bytes(array(block)))),
            BlockKind::I32 => numbers.push(i32::from_le_bytes(array(block)) as f32),
            BlockKind::I64 => numbers.push(i64::from_le_bytes(array(block)) as f32),
            BlockKind::Q1_0 => {
                let d = half(block, 0);
                let bits = block[2..]
                    .iter()
                    .flat_map(|byte| (0..8).map(move |i| byte >> i & 1));
                numbers.extend(bits.map(|bit| if bit == 1 { d } else { -d }));
            }
            BlockKind::Q4_0 => fours(&block[2..], numbers, |q| {
                (f32::from(q) - 8.0) * half(block, 0)
            }),
            BlockKind::Q4_1 => fours(&block[4..], numbers, |q| {
                f32::from(q) * half(block, 0) + half(block, 2)
            }),
            BlockKind::Q5_0 => fives(&block[6..], &block[2..6], numbers, |q| {
                (f32::from(q) - 16.0) * half(block, 0)
            }),
            BlockKind::Q5_1 => {
                fives(&block[8..], &block[4..8], numbers, |q| {
                    f32::from(q) * half(block, 0) + half(block, 2)
                });
            }
            BlockKind::Q8_0 => eights(&block[2..], half(block, 0), numbers),
            // Sums of the values follow the scale of Q8_1 and the values of Q8_K, for products of quantized inputs.
            BlockKind::Q8_1 => eights(&block[4..], half(block, 0), numbers),
            BlockKind::Q8K => eights(&block[4..260], f32::from_le_bytes(array(block)), numbers),
            BlockKind::Q2K => k_twos(block, numbers),
            BlockKind::Q3K => k_threes(block, numbers),
            BlockKind::Q4K => k_fours(block, &[], &block[16..], numbers),
            BlockKind::Q5K => k_fours(block, &block[16..48], &block[48..], numbers),
            BlockKind::Q6K => k_sixes(block, numbers),
            BlockKind::Iq4Nl => fours(&block[2..], numbers, |q| {
                f32::from(NON_LINEAR[usize::from(q)]) * half(block, 0)
            }),
            BlockKind::Iq4Xs => non_linear_parts(block, numbers),
            BlockKind::Iq1S
            | BlockKind::Iq1M
            | BlockKind::Iq2Xxs
            | BlockKind::Iq2Xs
            | BlockKind::Iq2S
            | BlockKind::Iq3Xxs
            | BlockKind::Iq3S => grids::decode(kind, block, numbers),
            BlockKind::Tq1_0 => {
                let d = half(block, 52);
                for (bytes, n_digits) in
                    [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)]
                {
                    base_three(bytes, n_digits, d, numbers);
                }
            }
            BlockKind::Tq2_0 => {
                let d = half(block, 64);
                numbers.extend(pairs(&block[..64]).map(|code| d * (f32::from(code) - 1.0)));
            }
            BlockKind::Mxfp4 => fours_float(&block[1..], half_power(block[0]), numbers),
            BlockKind::Nvfp4 => {
                for (scale, bytes) in block[..4].iter().zip(block[4..].chunks_exact(8)) {
                    fours_float(bytes, half_e4m3(*scale), numbers);
                }
            }
        }
    }
}

/// `2^(code - 128)`.
pub(super) fn half_power(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 21),
        1 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(code - 1) << 23),
    }
}

/// Returns half the value of an E4M3 number without its sign. NaN is 0 in ggml, unless the sign's bit is set.
fn half_e4m3(code: u8) -> f32 {
    match code {
        0x7f => 0.0,
        0xff => 240.0,
        _ => e4m3(code & 0x7f) / 2.0,
    }
}

fn array<const N: usize>(block: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| block[i])
}

/// Returns all bytes' low nibbles, then their high nibbles.
pub(super) fn fourth_bits(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let low = bytes.iter().map(|byte| byte & 15);
    low.chain(bytes.iter().map(|byte| byte >> 4))
}

fn eights(bytes: &[u8], d: f32, numbers: &mut Vec<f32>) {
    numbers.extend(bytes.iter().map(|&q| f32::from(q as i8) * d));
}

fn fours(bytes: &[u8], numbers: &mut Vec<f32>, number: impl Fn(u8) -> f32) {
    numbers.extend(fourth_bits(bytes).map(number));
}

/// Dequantizes 4-bit floating-point values, with half their scale: twice the values are whole, and 2^-127 times a half
/// does not underflow. ggml has no negative zero.
fn fours_float(bytes: &[u8], half_scale: f32, numbers: &mut Vec<f32>) {
    fours(bytes, numbers, |q| {
        (2.0 * E2M1[usize::from(q)] + 0.0) * half_scale
    });
}

/// Dequantizes bytes that hold several base-3 digits each, as fractions of 256: the first digits of all bytes, then the second ones.
fn base_three(bytes: &[u8], n_digits: usize, d: f32, numbers: &mut Vec<f32>) {
    for power in [1u8, 3, 9, 27, 81].into_iter().take(n_digits) {
        numbers.extend(bytes.iter().map(|byte| {
            let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
            d * (f32::from(digit) - 1.0)
        }));
    }
}

/// Returns the 6-bit scale and 6-bit minimum for one of eight groups.
pub(super) fn k_scale(s: &[u8], part: usize) -> (u8, u8) {
    match part {
        0..4 => (s[part] & 63, s[part + 4] & 63),
        _ => (
            s[part + 4] & 15 | s[part - 4] >> 6 << 4,
            s[part + 4] >> 4 | s[part] >> 6 << 4,
        ),
    }
}

/// Dequantizes 5-bit values, with the fifth bits in a 32-bit word.
fn fives(bytes: &[u8], high: &[u8], numbers: &mut Vec<f32>, number: impl Fn(u8) -> f32) {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    let fifth = |i: usize| ((high >> i & 1) as u8) << 4;
    numbers.extend(
        bytes
            .iter()
            .enumerate()
            .map(|(i, byte)| number(byte & 15 | fifth(i))),
    );
    numbers.extend(
        bytes
            .iter()
            .enumerate()
            .map(|(i, byte)| number(byte >> 4 | fifth(i + 16))),
    );
}

/// Dequantizes Q4_K, and Q5_K with its fifth bits: eight groups of 32 values, each with a 6-bit scale and minimum.
fn k_fours(block: &[u8], high: &[u8], low: &[u8], numbers: &mut Vec<f32>) {
    let (d, d_min, s) = (half(block, 0), half(block, 2), &block[4..16]);
    for (part, bytes) in low
        .chunks_exact(32)
        .flat_map(|bytes| [bytes, bytes])
        .enumerate()
    {
        let (scale, min) = k_scale(s, part);
        let (scale, min) = (d * f32::from(scale), d_min * f32::from(min));
        numbers.extend(bytes.iter().enumerate().map(|(i, byte)| {
            let fourth = if part % 2 == 0 { byte & 15 } else { byte >> 4 };
            let fifth = high.get(i).map_or(0, |high| (high >> part & 1) << 4);
            scale * f32::from(fourth | fifth) - min
        }));
    }
}

/// Returns 2-bit values. 32 bytes contain four runs of 32 values, one in each pair of bits.
pub(super) fn pairs(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let halves = bytes.chunks_exact(32);
    halves.flat_map(|half| {
        (0..4).flat_map(|quarter| half.iter().map(move |byte| byte >> (2 * quarter) & 3))
    })
}

/// Dequantizes Q2_K: sixteen groups of 16 values, each with a 4-bit scale and minimum.
fn k_twos(block: &[u8], numbers: &mut Vec<f32>) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (d, d_min) = (half(block, 80), half(block, 82));
    numbers.extend(pairs(codes).enumerate().map(|(i, code)| {
        let scale = scales[i / 16];
        d * f32::from(scale & 15) * f32::from(code) - d_min * f32::from(scale >> 4)
    }));
}

/// Returns Q3_K's values, plus 4. Their third bits are in a mask.
pub(super) fn threes(block: &[u8]) -> impl Iterator<Item = u8> {
    let third = |i: usize| block[i % 32] >> (i / 32) & 1;
    let codes = pairs(&block[32..96]).enumerate();
    codes.map(move |(i, code)| code | third(i) << 2)
}

/// Returns the 6-bit scale for one of Q3_K's sixteen groups.
pub(super) fn threes_scale(block: &[u8], part: usize) -> f32 {
    let low = block[96 + part % 8] >> (part / 8 * 4) & 15;
    let high = block[104 + part % 4] >> (part / 4 * 2) & 3;
    f32::from((low | high << 4) as i8 - 32)
}

/// Dequantizes Q3_K: sixteen groups of 16 values, each with a 6-bit scale.
fn k_threes(block: &[u8], numbers: &mut Vec<f32>) {
    let d = half(block, 108);
    numbers.extend(
        threes(block)
            .enumerate()
            .map(|(i, code)| d * threes_scale(block, i / 16) * (f32::from(code) - 4.0)),
    );
}

/// Values for the 4-bit indices in IQ4_NL and IQ4_XS.
const NON_LINEAR: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Returns the 6-bit scale for one of IQ4_XS' eight groups.
pub(super) fn non_linear_scale(block: &[u8], part: usize) -> f32 {
    let low = block[4 + part / 2] >> (part % 2 * 4) & 15;
    let high = (u16::from_le_bytes([block[2], block[3]]) >> (2 * part) & 3) as u8;
    f32::from((low | high << 4) as i8 - 32)
}

/// Dequantizes IQ4_XS: eight groups of 32 values, each with a 6-bit scale.
fn non_linear_parts(block: &[u8], numbers: &mut Vec<f32>) {
    for (part, bytes) in block[8..].chunks_exact(16).enumerate() {
        let scale = half(block, 0) * non_linear_scale(block, part);
        fours(bytes, numbers, |q| {
            scale * f32::from(NON_LINEAR[usize::from(q)])
        });
    }
}

/// Dequantizes Q6_K: two halves of 128 values, where 16 values share a scale.
fn k_sixes(block: &[u8], numbers: &mut Vec<f32>) {
    let (low, high, scales, d) = (
        &block[..128],
        &block[128..192],
        &block[192..208],
        half(block, 208),
    );
    for side in 0..2 {
        for quarter in 0..4 {
            for i in 0..32 {
                let low = low[64 * side + 32 * (quarter % 2) + i];
                let low = if quarter < 2 { low & 15 } else { low >> 4 };
                let high = high[32 * side + i] >> (2 * quarter) & 3;
                let scale = scales[8 * side + 2 * quarter + i / 16] as i8;
                numbers.push(d * f32::from(scale) * (f32::from(low | high << 4) - 32.0));
            }
        }
    }
}
