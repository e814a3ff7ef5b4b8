//! The quantized values in GGUF's blocks, with their scales and minima as stored.

use half::f16;

use super::blocks::{fourth_bits, half, half_power, k_scale};
use candle_blocks_kernels::products::{
    GroupScales, QuantizedFormat, QuantizedWeightRows, ScaleType,
};

use crate::checkpoint::files::BlockKind;

/// Returns the format in which blocks of a type are packed, if they have one.
pub(super) fn format(kind: BlockKind) -> Option<QuantizedFormat> {
    let zero = |zero| GroupScales::Zero {
        scales: ScaleType::F16,
        zero,
    };
    let minima = GroupScales::Minima(ScaleType::F16);
    let (bits_by_group, scales) = match kind {
        BlockKind::Q4_0 => ((4, 32), zero(8)),
        BlockKind::Q4_1 => ((4, 32), minima),
        BlockKind::Q5_0 => ((5, 32), zero(16)),
        BlockKind::Q5_1 => ((5, 32), minima),
        BlockKind::Q8_0 => ((8, 32), zero(128)),
        BlockKind::Q4K => ((4, 32), GroupScales::TwoLevels),
        BlockKind::Q5K => ((5, 32), GroupScales::TwoLevels),
        BlockKind::Q6K => ((6, 16), GroupScales::Signed),
        BlockKind::Mxfp4 => ((4, 32), GroupScales::Microscaled),
        _ => return None,
    };
    Some(QuantizedFormat {
        bits_by_group,
        scales,
    })
}

/// Appends the quantized values of whole blocks.
pub(super) fn append(kind: BlockKind, bytes: &[u8], rows: &mut QuantizedWeightRows) {
    let (_, size) = kind.block();
    for block in bytes.chunks_exact(size) {
        match kind {
            BlockKind::Q4_0 => {
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
    rows.shared.push([half(block, 208), f16::ZERO.to_f32()]);
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
