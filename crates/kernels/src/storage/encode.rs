//! Quantizes values to GGUF's blocks.
//!
//! Q8_0 and Q4_0 round like ggml's reference, so their bytes equal those of its own tools. For K types, where ggml searches
//! for good scales, `search` does so too.

use half::{bf16, f16};

use super::BlockKind;
use super::search::{inverse, sixteens, thirty_twos};

/// Appends the blocks for values that fill whole blocks. Appends nothing for types that are not written.
pub fn encode(kind: BlockKind, numbers: &[f32], bytes: &mut Vec<u8>) {
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
            _ => {}
        }
    }
}

/// Values are rounded by the exact scale, and the stored scale is rounded separately.
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

/// The value with the largest magnitude, the first of several, becomes exactly -8.
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
