//! Blocks of GGUF made of numbers.
//!
//! Q8_0 and Q4_0 round as ggml's reference does, so that their bytes are those of its own tools. The K kinds, of which ggml's
//! own is a search for good scales, are searched for here too ([`super::search`]).

use half::{bf16, f16};

use super::search::{inverse, sixteens, thirty_twos};
use crate::checkpoint::files::BlockKind;

/// Appends the blocks of numbers, which fill whole ones. Of a kind that is not written, nothing.
pub(super) fn encode(kind: BlockKind, numbers: &[f32], bytes: &mut Vec<u8>) {
    let (size, _) = kind.block();
    for block in numbers.chunks_exact(size) {
        match kind {
            BlockKind::F32 => bytes.extend(block[0].to_le_bytes()),
            BlockKind::F16 => bytes.extend(f16::from_f32(block[0]).to_le_bytes()),
            BlockKind::Bf16 => bytes.extend(bf16::from_f32(block[0]).to_le_bytes()),
            BlockKind::Q8_0 => eights(block, bytes),
            BlockKind::Q4_0 => fours(block, bytes),
            BlockKind::Q4K => thirty_twos(block, bytes),
            BlockKind::Q6K => sixteens(block, bytes),
            BlockKind::Q4_1
            | BlockKind::Q5_0
            | BlockKind::Q5_1
            | BlockKind::Q2K
            | BlockKind::Q3K
            | BlockKind::Q5K
            | BlockKind::Iq4Nl
            | BlockKind::Iq4Xs
            | BlockKind::Mxfp4 => {}
        }
    }
}

/// Codes are rounded by the exact scale, and the scale that is stored is rounded itself.
fn eights(block: &[f32], bytes: &mut Vec<u8>) {
    let largest = block.iter().fold(0f32, |max, number| max.max(number.abs()));
    let scale = largest / 127.0;
    let inverse = inverse(scale);
    bytes.extend(f16::from_f32(scale).to_le_bytes());
    bytes.extend(
        block
            .iter()
            .map(|number| (number * inverse).round() as i8 as u8),
    );
}

/// The number of the largest size, the first of several, becomes -8 exactly.
fn fours(block: &[f32], bytes: &mut Vec<u8>) {
    let largest = block.iter().fold(0f32, |largest, &number| {
        match number.abs() > largest.abs() {
            true => number,
            false => largest,
        }
    });
    let scale = largest / -8.0;
    let inverse = inverse(scale);
    let code = |number: f32| ((number * inverse + 8.5) as u8).min(15);
    bytes.extend(f16::from_f32(scale).to_le_bytes());
    let (low, high) = block.split_at(block.len() / 2);
    bytes.extend(
        low.iter()
            .zip(high)
            .map(|(&low, &high)| code(low) | code(high) << 4),
    );
}
