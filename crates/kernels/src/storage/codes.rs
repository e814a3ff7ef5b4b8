//! The quantized values in GGUF's blocks, with their scales and minima as stored.

use super::BlockKind;
use super::decode::{
    fourth_bits, half_power, k_scale, non_linear_scale, pairs, threes, threes_scale,
};
use super::numbers::half;
use crate::products::{
    GroupScales, NON_LINEAR_ZERO, QuantizedFormat, QuantizedWeightRows, ScaleType,
};

/// Returns the format in which blocks of a type are packed, if they have one.
pub fn format(kind: BlockKind) -> Option<QuantizedFormat> {
    let zero = |zero| GroupScales::Zero {
        scales: ScaleType::F16,
        zero,
    };
    let minima = GroupScales::Minima(ScaleType::F16);
    let short = |zero| GroupScales::Short { zero };
    let (bits_by_group, scales) = match kind {
        BlockKind::Q4_0 => ((4, 32), zero(8)),
        BlockKind::Q4_1 => ((4, 32), minima),
        BlockKind::Q5_0 => ((5, 32), zero(16)),
        BlockKind::Q5_1 => ((5, 32), minima),
        BlockKind::Q8_0 => ((8, 32), zero(128)),
        BlockKind::Q4K => ((4, 32), GroupScales::TwoLevels),
        BlockKind::Q5K => ((5, 32), GroupScales::TwoLevels),
        BlockKind::Q6K => ((6, 16), GroupScales::Signed),
        BlockKind::Q2K => ((2, 16), GroupScales::Nibbles),
        BlockKind::Q3K => ((3, 16), short(4)),
        BlockKind::Iq4Nl => ((4, 32), zero(NON_LINEAR_ZERO)),
        BlockKind::Iq4Xs => ((4, 32), short(NON_LINEAR_ZERO)),
        BlockKind::Mxfp4 => ((4, 32), GroupScales::Microscaled),
        _ => return None,
    };
    Some(QuantizedFormat {
        bits_by_group,
        scales,
    })
}

/// Appends the quantized values in whole blocks.
pub fn append(kind: BlockKind, bytes: &[u8], rows: &mut QuantizedWeightRows) {
    let (_, size) = kind.block();
    for block in bytes.chunks_exact(size) {
        match kind {
            BlockKind::Q4_0 | BlockKind::Iq4Nl => {
                rows.scales.push(half(block, 0));
                rows.values.extend(fourth_bits(&block[2..]));
            }
            BlockKind::Q4_1 => {
                rows.scales.push(half(block, 0));
                rows.offsets.push(half(block, 2));
                rows.values.extend(fourth_bits(&block[4..]));
            }
            BlockKind::Q5_0 => {
                rows.scales.push(half(block, 0));
                fives(&block[6..], &block[2..6], &mut rows.values);
            }
            BlockKind::Q5_1 => {
                rows.scales.push(half(block, 0));
                rows.offsets.push(half(block, 2));
                fives(&block[8..], &block[4..8], &mut rows.values);
            }
            BlockKind::Q8_0 => {
                rows.scales.push(half(block, 0));
                rows.values.extend(block[2..].iter().map(|q| q ^ 128));
            }
            BlockKind::Q4K => k_fours(block, &[], &block[16..], rows),
            BlockKind::Q5K => k_fours(block, &block[16..48], &block[48..], rows),
            BlockKind::Q6K => k_sixes(block, rows),
            BlockKind::Q2K => {
                rows.shared.push([half(block, 80), half(block, 82)]);
                let scales = block[..16].iter();
                rows.scales
                    .extend(scales.clone().map(|s| f32::from(s & 15)));
                rows.offsets.extend(scales.map(|s| f32::from(s >> 4)));
                rows.values.extend(pairs(&block[16..80]));
            }
            BlockKind::Q3K => {
                rows.shared.push([half(block, 108), 0.0]);
                let scales = (0..16).map(|part| threes_scale(block, part));
                rows.scales.extend(scales);
                rows.values.extend(threes(block));
            }
            BlockKind::Iq4Xs => {
                rows.shared.push([half(block, 0), 0.0]);
                rows.scales
                    .extend((0..8).map(|part| non_linear_scale(block, part)));
                let parts = block[8..].chunks_exact(16);
                rows.values.extend(parts.flat_map(fourth_bits));
            }
            BlockKind::Mxfp4 => {
                rows.scales.push(half_power(block[0]));
                rows.values.extend(fourth_bits(&block[1..]));
            }
            _ => {}
        }
    }
}

/// Appends 5-bit values, with the fifth bits in a 32-bit word.
fn fives(low: &[u8], high: &[u8], codes: &mut Vec<u8>) {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    let with_fifth = |(i, code)| code | ((high >> i & 1) as u8) << 4;
    codes.extend(fourth_bits(low).enumerate().map(with_fifth));
}

fn k_fours(block: &[u8], high: &[u8], low: &[u8], rows: &mut QuantizedWeightRows) {
    rows.shared.push([half(block, 0), half(block, 2)]);
    for part in 0..8 {
        let (scale, min) = k_scale(&block[4..16], part);
        rows.scales.push(scale.into());
        rows.offsets.push(min.into());
        let bytes = &low[part / 2 * 32..][..32];
        rows.values
            .extend(bytes.iter().enumerate().map(|(i, byte)| {
                let fourth = byte >> (part % 2 * 4) & 15;
                fourth | high.get(i).map_or(0, |high| (high >> part & 1) << 4)
            }));
    }
}

fn k_sixes(block: &[u8], rows: &mut QuantizedWeightRows) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    rows.shared.push([half(block, 208), 0.0]);
    rows.scales
        .extend(scales.iter().map(|scale| f32::from(*scale as i8)));
    for side in 0..2 {
        for quarter in 0..4 {
            rows.values.extend((0..32).map(|i| {
                let low = low[64 * side + 32 * (quarter % 2) + i] >> (quarter / 2 * 4) & 15;
                low | (high[32 * side + i] >> (2 * quarter) & 3) << 4
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::products::PackedWeight;
    use crate::storage::decode;
    use crate::{Cpu, memory::LargePages};

    #[test]
    fn packed_blocks_unpack_to_the_bits_of_the_dequantized_values() {
        const N_BLOCKS: usize = 100;
        let cpu = Cpu::selected(1).unwrap();
        for kind in [
            BlockKind::Q4_0,
            BlockKind::Q4_1,
            BlockKind::Q5_0,
            BlockKind::Q5_1,
            BlockKind::Q8_0,
            BlockKind::Q4K,
            BlockKind::Q5K,
            BlockKind::Q6K,
            BlockKind::Q2K,
            BlockKind::Q3K,
            BlockKind::Iq4Nl,
            BlockKind::Iq4Xs,
            BlockKind::Mxfp4,
        ] {
            let (length, size) = kind.block();
            let mut state = 7u32;
            let mut byte = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 16) % 251) as u8
            };
            let (mut rows, mut expected) = (QuantizedWeightRows::default(), Vec::new());
            while expected.len() < N_BLOCKS * length {
                let block: Vec<u8> = (0..size).map(|_| byte()).collect();
                let mut numbers = Vec::new();
                decode::decode(kind, &block, &mut numbers);
                if numbers.iter().all(|x| x.is_finite()) {
                    append(kind, &block, &mut rows);
                    expected.extend(numbers);
                }
            }
            let (format, pages) = (format(kind).unwrap(), LargePages::default());
            let read = &mut |_, range: std::ops::Range<usize>| Ok(rows.select(N_BLOCKS, range));
            let shape = ([N_BLOCKS, length], false);
            let packed =
                PackedWeight::from_quantized(cpu, format, shape, &pages, read, |_, reason| reason);
            let packed = packed.unwrap();
            assert_eq!(expected.len(), N_BLOCKS * length);
            for (row, expected) in expected.chunks_exact(length).enumerate() {
                let mut found = vec![9.0; length];
                packed.unpack_row(row, &mut found);
                // Zero times a negative scale is -0, which an offset of 0 makes +0.
                let is_same =
                    |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (*a, *b) == (0.0, 0.0);
                assert!(
                    found.iter().zip(expected).all(is_same),
                    "{kind:?}, block {row}"
                );
            }
        }
    }
}
