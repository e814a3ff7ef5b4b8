//! Dequantizes ggml's IQ1, IQ2 and IQ3 types, whose quantized values are indices of rows in a grid
//! (<https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c>).

use half::f16;

use super::BlockKind;
use super::numbers::half;

/// All grids' rows: eight 2-bit values, or four 4-bit values, the first in the lowest bits. Each value is an
/// index into an array below.
static ROWS: [u16; N_ROWS] = rows(include_bytes!("grids.txt"));
/// The index at which each grid begins.
const IQ2_XXS: usize = 0;
const IQ2_XS: usize = IQ2_XXS + 256;
const IQ2_S: usize = IQ2_XS + 512;
const IQ3_XXS: usize = IQ2_S + 1024;
const IQ3_S: usize = IQ3_XXS + 256;
const IQ1: usize = IQ3_S + 512;
const N_ROWS: usize = IQ1 + 2048;

const TWOS: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
const THREES: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
const ODD: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];

/// Reads the rows from hexadecimal digits, with two bytes for a row, the low one first. A line that begins with `#` is a comment.
const fn rows(text: &[u8]) -> [u16; N_ROWS] {
    let (mut rows, mut n_digits, mut at) = ([0; N_ROWS], 0, 0);
    let mut is_comment = false;
    while at < text.len() {
        is_comment = text[at] == b'#' || is_comment && text[at] != b'\n';
        let digit = (text[at] as char).to_digit(16);
        if let (Some(digit), false) = (digit, is_comment) {
            rows[n_digits / 4] |= (digit as u16) << [4, 0, 12, 8][n_digits % 4];
            n_digits += 1;
        }
        at += 1;
    }
    assert!(n_digits == 4 * N_ROWS, "a grid has another number of rows");
    rows
}

/// Appends a block's dequantized values; nothing for other types.
pub(super) fn decode(kind: BlockKind, block: &[u8], numbers: &mut Vec<f32>) {
    match kind {
        BlockKind::Iq2Xxs => {
            for part in block[2..].chunks_exact(8) {
                let signs = u32::from_le_bytes([part[4], part[5], part[6], part[7]]);
                let scale = half(block, 0) * (0.5 + (signs >> 28) as f32) * 0.25;
                for i in 0..4 {
                    let row = ROWS[IQ2_XXS + usize::from(part[i])];
                    signed(scale, row.into(), &TWOS, even(signs >> (7 * i)), numbers);
                }
            }
        }
        BlockKind::Iq2Xs => {
            for i in 0..32 {
                let code = word(block, 2 + 2 * i);
                let row = ROWS[IQ2_XS + usize::from(code & 511)];
                let scale = half(block, 0) * (0.5 + nibble(&block[66..], i / 2)) * 0.25;
                signed(scale, row.into(), &TWOS, even((code >> 9).into()), numbers);
            }
        }
        BlockKind::Iq2S => {
            let (low, high) = (&block[2..34], &block[66..74]);
            for (i, &signs) in block[34..66].iter().enumerate() {
                let high = usize::from(high[i / 4] >> (2 * (i % 4)) & 3);
                let row = ROWS[IQ2_S + (usize::from(low[i]) | high << 8)];
                let scale = half(block, 0) * (0.5 + nibble(&block[74..], i / 2)) * 0.25;
                signed(scale, row.into(), &TWOS, signs, numbers);
            }
        }
        BlockKind::Iq3Xxs => {
            let row = |i: usize| u32::from(ROWS[IQ3_XXS + usize::from(block[2 + i])]);
            for i in 0..32 {
                let at = 66 + i / 4 * 4;
                let signs = u32::from(word(block, at)) | u32::from(word(block, at + 2)) << 16;
                let scale = half(block, 0) * (0.5 + (signs >> 28) as f32) * 0.5;
                let row = row(2 * i) | row(2 * i + 1) << 16;
                signed(scale, row, &THREES, even(signs >> (i % 4 * 7)), numbers);
            }
        }
        BlockKind::Iq3S => {
            let (low, high) = (&block[2..66], &block[66..74]);
            let row = |i: usize| {
                let high = usize::from(high[i / 8] >> (i % 8) & 1);
                u32::from(ROWS[IQ3_S + (usize::from(low[i]) | high << 8)])
            };
            for (i, &signs) in block[74..106].iter().enumerate() {
                let scale = half(block, 0) * (1.0 + 2.0 * nibble(&block[106..], i / 4));
                signed(
                    scale,
                    row(2 * i) | row(2 * i + 1) << 16,
                    &ODD,
                    signs,
                    numbers,
                );
            }
        }
        BlockKind::Iq1S => {
            for i in 0..32 {
                let high = word(block, 34 + i / 4 * 2);
                let scale = half(block, 0) * f32::from(2 * (high >> 12 & 7) + 1);
                let row = usize::from(block[2 + i]) | usize::from(high >> (i % 4 * 3) & 7) << 8;
                shifted(scale, ROWS[IQ1 + row], high >> 15 == 1, numbers);
            }
        }
        BlockKind::Iq1M => {
            let word = |i: usize| word(block, 48 + 2 * i);
            let d = (0..4).fold(0, |bits, i| bits | word(i) >> 12 << (4 * i));
            for i in 0..32 {
                let scale = 2 * (word(i / 8) >> (i / 2 % 4 * 3) & 7) + 1;
                let scale = f16::from_bits(d).to_f32() * f32::from(scale);
                let high = block[32 + i / 2] >> (i % 2 * 4);
                let row = usize::from(block[i]) | usize::from(high & 7) << 8;
                shifted(scale, ROWS[IQ1 + row], high & 8 != 0, numbers);
            }
        }
        _ => {}
    }
}

fn word(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn nibble(bytes: &[u8], i: usize) -> f32 {
    f32::from(bytes[i / 2] >> (i % 2 * 4) & 15)
}

/// Returns seven bits, and an eighth that makes the number of ones even.
fn even(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | ((bits.count_ones() & 1) as u8) << 7
}

/// Appends a row's eight values times a scale, negated where a bit of `signs` is 1.
fn signed<const N: usize>(
    scale: f32,
    row: u32,
    values: &[f32; N],
    signs: u8,
    numbers: &mut Vec<f32>,
) {
    let bits = if N == 4 { 2 } else { 4 };
    numbers.extend((0..8).map(|i| {
        let value = scale * values[(row >> (bits * i)) as usize % N];
        if signs >> i & 1 == 1 { -value } else { value }
    }));
}

/// Appends a row's eight values, which are -1, 0 or 1, plus or minus an eighth, times a scale.
fn shifted(scale: f32, row: u16, is_less: bool, numbers: &mut Vec<f32>) {
    let shift = if is_less { -1.125 } else { -0.875 };
    numbers.extend((0..8).map(|i| scale * (f32::from(row >> (2 * i) & 3) + shift)));
}
