//! Random quantized weights, and their products in the documented order.

use std::ops::Range;

use half::{bf16, f16};

use super::*;
use crate::memory::LargePages;
use crate::products::formats::group_scales::CHUNK;

/// Returns every bit width with every group size and every scale type.
pub(super) fn formats() -> Vec<QuantizedFormat> {
    let mut formats = Vec::new();
    let mut add = |bits_by_group, scales| {
        formats.push(QuantizedFormat {
            bits_by_group,
            scales,
        });
    };
    let groups = [32, 64, 128, 256].into_iter();
    for bits_by_group in groups
        .flat_map(|group| [(4, group), (8, group)])
        .chain([(5, 32)])
    {
        let zero = 1 << (bits_by_group.0 - 1);
        for (least, scales) in [ScaleType::F16, ScaleType::Bf16, ScaleType::F32]
            .into_iter()
            .enumerate()
        {
            let least = least as u8;
            add(bits_by_group, GroupScales::Zero { scales, zero });
            add(bits_by_group, GroupScales::Zeros { scales, least });
            add(bits_by_group, GroupScales::Minima(scales));
        }
    }
    add((4, 32), GroupScales::TwoLevels);
    add((4, 32), GroupScales::Microscaled);
    let zero = NON_LINEAR_ZERO;
    let scales = ScaleType::F16;
    add((4, 32), GroupScales::Zero { scales, zero });
    add((4, 32), GroupScales::Short { zero });
    add((3, 16), GroupScales::Short { zero: 4 });
    add((2, 16), GroupScales::Nibbles);
    add((5, 32), GroupScales::TwoLevels);
    add((6, 16), GroupScales::Signed);
    formats
}

/// ggml's `kvalues_iq4nl`.
const NON_LINEAR: [i32; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Scales and offsets as a file stores them, exactly and as the kernels round them.
pub(super) struct Weight {
    coded: QuantizedWeightRows,
    /// The quantized values as integers. For E2M1, twice the value plus 12; for IQ4_NL's table, the value plus 127.
    whole: Vec<u8>,
    affine: Vec<([f64; 2], [f32; 2])>,
    pub(super) shape: [usize; 2],
    group: usize,
    /// How many row values are quantized together.
    part: usize,
}

impl Weight {
    pub(super) fn new(format: QuantizedFormat, shape: [usize; 2], seed: u64) -> Self {
        let ([d_out, d_in], (bits, group)) = (shape, format.bits_by_group);
        let n_groups = d_in.div_ceil(group);
        let whole = |n: usize, least: i32, most: i32, seed: u64| -> Vec<f32> {
            let random = numbers(n, 0.0, 1e3, seed).into_iter();
            let span = most - least + 1;
            let of = |x: f32| (least + (x.abs() as i32) % span) as f32;
            random.map(of).collect()
        };
        let values = whole(d_out * d_in, 0, (1 << bits) - 1, seed);
        let held = |number: ScaleType, n: usize, seed: u64| -> Vec<f32> {
            let random = numbers(n, 0.0, 0.02, seed).into_iter();
            let round = |x: f32| match number {
                ScaleType::F16 => f16::from_f32(x).to_f32(),
                ScaleType::Bf16 => bf16::from_f32(x).to_f32(),
                ScaleType::F32 => x,
            };
            random.map(round).collect()
        };
        let n = d_out * n_groups;
        let mut coded = QuantizedWeightRows {
            values: values.into_iter().map(|code| code as u8).collect(),
            ..QuantizedWeightRows::default()
        };
        let mut add_shared = || {
            let per_row = d_in.div_ceil(CHUNK);
            let of_d = held(ScaleType::F16, d_out * per_row, seed + 3);
            let of_m = held(ScaleType::F16, d_out * per_row, seed + 4);
            coded.shared = of_d.into_iter().zip(of_m).map(|(d, m)| [d, m]).collect();
        };
        match format.scales {
            GroupScales::TwoLevels
            | GroupScales::Nibbles
            | GroupScales::Signed
            | GroupScales::Short { .. } => add_shared(),
            _ => {}
        }
        (coded.scales, coded.offsets) = match format.scales {
            GroupScales::Zero { scales, .. } => (held(scales, n, seed + 1), vec![]),
            GroupScales::Zeros { scales, least } => {
                let least = i32::from(least);
                let zeros = whole(n, least, least + 255, seed + 2);
                (held(scales, n, seed + 1), zeros)
            }
            GroupScales::Minima(number) => (held(number, n, seed + 1), held(number, n, seed + 2)),
            GroupScales::TwoLevels => (whole(n, 0, 63, seed + 1), whole(n, 0, 63, seed + 2)),
            GroupScales::Nibbles => (whole(n, 0, 15, seed + 1), whole(n, 0, 15, seed + 2)),
            GroupScales::Signed => (whole(n, -128, 127, seed + 1), vec![]),
            GroupScales::Short { .. } => (whole(n, -32, 31, seed + 1), vec![]),
            GroupScales::Microscaled => {
                let powers = whole(n, -9, 2, seed + 1).into_iter();
                (powers.map(f32::exp2).collect(), vec![])
            }
        };
        let affine = |i: usize| {
            let shared = || {
                let chunk = i % n_groups * group / CHUNK;
                coded.shared[i / n_groups * d_in.div_ceil(CHUNK) + chunk]
            };
            let scale = coded.scales[i];
            match format.scales {
                GroupScales::Zero { zero, .. } => (
                    [scale.into(), -(f64::from(zero) * f64::from(scale))],
                    [scale, -(f32::from(zero) * scale)],
                ),
                GroupScales::Zeros { .. } => {
                    let zero = coded.offsets[i];
                    (
                        [scale.into(), -f64::from(zero) * f64::from(scale)],
                        [scale, -(zero * scale)],
                    )
                }
                GroupScales::Minima(_) => (
                    [scale.into(), coded.offsets[i].into()],
                    [scale, coded.offsets[i]],
                ),
                GroupScales::TwoLevels | GroupScales::Nibbles => {
                    let ([d, m], min) = (shared(), coded.offsets[i]);
                    let exact = [
                        f64::from(d) * f64::from(scale),
                        -f64::from(m) * f64::from(min),
                    ];
                    (exact, [d * scale, -(m * min)])
                }
                GroupScales::Microscaled => (
                    [scale.into(), -12.0 * f64::from(scale)],
                    [scale, -12.0 * scale],
                ),
                GroupScales::Signed | GroupScales::Short { .. } => {
                    let [d, _] = shared();
                    let zero = match format.scales {
                        GroupScales::Short { zero } => f32::from(zero),
                        _ => 32.0,
                    };
                    let (exact, rounded) = (f64::from(d) * f64::from(scale), d * scale);
                    (
                        [exact, -f64::from(zero) * exact],
                        [rounded, -(zero * rounded)],
                    )
                }
            }
        };
        let affine = (0..n).map(affine).collect();
        let numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0].map(|x: f32| (2.0 * x) as i8);
        let double = |code: u8| match code & 8 {
            0 => 12 + numbers[usize::from(code & 7)],
            _ => 12 - numbers[usize::from(code & 7)],
        };
        let whole = |&code: &u8| match format.scales {
            GroupScales::Microscaled => double(code) as u8,
            scales if scales.is_non_linear() => (127 + NON_LINEAR[usize::from(code)]) as u8,
            _ => code,
        };
        Self {
            whole: coded.values.iter().map(whole).collect(),
            affine,
            shape,
            group,
            part: match (bits, group) {
                (8, 64) => 32,
                (_, 256) => 128,
                _ => group,
            },
            coded,
        }
    }

    pub(super) fn rows(&self, rows: Range<usize>) -> QuantizedWeightRows {
        fn part<T: Clone>(of: &[T], rows: &Range<usize>, n: usize) -> Vec<T> {
            let width = of.len() / n.max(1);
            of[rows.start * width..rows.end * width].to_vec()
        }
        let n = self.shape[0];
        QuantizedWeightRows {
            values: part(&self.coded.values, &rows, n),
            scales: part(&self.coded.scales, &rows, n),
            offsets: part(&self.coded.offsets, &rows, n),
            shared: part(&self.coded.shared, &rows, n),
        }
    }

    pub(super) fn pack(&self, isa: Isa, format: QuantizedFormat) -> PackedWeight {
        let read = &mut |_, rows| Ok(self.rows(rows));
        packed(isa, format, (self.shape, false), read).unwrap()
    }

    pub(super) fn parts_of(
        &self,
        row: usize,
    ) -> impl Iterator<Item = (&[u8], &([f64; 2], [f32; 2]))> {
        let [_, d_in] = self.shape;
        let values = self.whole[row * d_in..][..d_in].chunks(self.part);
        let affine = &self.affine[row * d_in.div_ceil(self.group)..];
        let each = values.enumerate();
        each.map(|(part, values)| (values, &affine[part * self.part / self.group]))
    }

    /// Returns a product element in the documented order, and its value without rounding the row.
    pub(super) fn element(&self, x: &[f32], row: usize) -> (f32, f64) {
        let groups = x.chunks(self.part).zip(self.parts_of(row));
        let each = groups.map(|(x, (values, (exact, [scale, offset])))| {
            let step = x.iter().fold(0f32, |largest, x| largest.max(x.abs())) / 127.0;
            let per_unit = if step == 0.0 { 0.0 } else { 1.0 / step };
            let integers: Vec<i64> = x
                .iter()
                .map(|x| (x * per_unit).round_ties_even() as i64)
                .collect();
            let products: i64 = integers
                .iter()
                .zip(values)
                .map(|(&n, &q)| n * i64::from(q))
                .sum();
            let of_row = step * integers.iter().sum::<i64>() as f32;
            let sum = products as f32 * step * scale + of_row * offset;
            let exactly = x
                .iter()
                .zip(values)
                .map(|(&x, &q)| f64::from(x) * (f64::from(q) * exact[0] + exact[1]));
            (sum, exactly.sum::<f64>())
        });
        each.reduce(|(total, of), (sum, exactly)| (total + sum, of + exactly))
            .unwrap_or((0.0, 0.0))
    }

    /// Returns the standard deviation of the error from rounding a row to integers, assuming independent errors.
    pub(super) fn row_error(&self, x: &[f32], row: usize) -> f64 {
        let groups = x.chunks(self.part).zip(self.parts_of(row));
        let squares = groups.map(|(x, (values, ([scale, offset], _)))| {
            let step = f64::from(x.iter().fold(0f32, |largest, x| largest.max(x.abs()))) / 127.0;
            let weights = values.iter().map(|&q| f64::from(q) * scale + offset);
            weights.map(|w| (w * step).powi(2) / 12.0).sum::<f64>()
        });
        squares.sum::<f64>().sqrt()
    }
}

/// Returns a packed quantized weight, gated or not.
pub(super) fn packed(
    isa: Isa,
    format: QuantizedFormat,
    shape: ([usize; 2], bool),
    read: &mut dyn FnMut(usize, Range<usize>) -> Result<QuantizedWeightRows, String>,
) -> Result<PackedWeight, String> {
    let pages = LargePages::default();
    PackedWeight::from_quantized(on(isa, 2), format, shape, &pages, read, |_, reason| reason)
}
