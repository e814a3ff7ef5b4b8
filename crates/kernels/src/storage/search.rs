//! Searches scales for Q4_K and Q6_K blocks with the least squared error.
//!
//! A group's own scale is searched first: quantized values for each of several scales around the one that covers the largest
//! value, then the scale with least squares for these quantized values. The block's scale maps the largest group scale to
//! the largest integer. Each group's integer is the neighbor of its own scale with the least error.
//!
//! Sums are accumulated side by side, so that the compiler can keep several in one register.

use half::f16;

use super::numbers::whole;

/// A group's scale and minimum: values are `scale * code - min`.
#[derive(Clone, Copy, Default)]
struct ScaleAndMin {
    scale: f32,
    min: f32,
}

/// Quantizes to Q4_K: eight groups of 32 values, each with a scale and a minimum.
pub(super) fn thirty_twos(block: &[f32], bytes: &mut Vec<u8>) {
    let mut best = [ScaleAndMin::default(); 8];
    for (best, part) in best.iter_mut().zip(block.chunks_exact(32)) {
        *best = affine(part);
    }
    let largest = |of: fn(&ScaleAndMin) -> f32| best.iter().map(of).fold(0f32, f32::max);
    let d = f16::from_f32(largest(|best| best.scale) / 63.0);
    let d_min = f16::from_f32(largest(|best| best.min) / 63.0);
    let (unit, unit_min) = (d.to_f32(), d_min.to_f32());
    let (mut scales, mut mins, mut codes) = ([0u8; 8], [0u8; 8], [0u8; 256]);
    for (part, numbers) in block.chunks_exact(32).enumerate() {
        let mut least = f32::INFINITY;
        for scale in nearest(best[part].scale, unit) {
            for min in nearest(best[part].min, unit_min) {
                let of = ScaleAndMin {
                    scale: unit * f32::from(scale),
                    min: unit_min * f32::from(min),
                };
                let error = of.error(numbers);
                if error < least {
                    (least, scales[part], mins[part]) = (error, scale, min);
                }
            }
        }
        let of = ScaleAndMin {
            scale: unit * f32::from(scales[part]),
            min: unit_min * f32::from(mins[part]),
        };
        for (code, &number) in codes[32 * part..].iter_mut().zip(numbers) {
            *code = of.code(number, inverse(of.scale)) as u8;
        }
    }
    bytes.extend(d.to_le_bytes());
    bytes.extend(d_min.to_le_bytes());
    bytes.extend((0..4).map(|i| scales[i] | scales[i + 4] >> 4 << 6));
    bytes.extend((0..4).map(|i| mins[i] | mins[i + 4] >> 4 << 6));
    bytes.extend((4..8).map(|i| scales[i] & 15 | (mins[i] & 15) << 4));
    for pair in codes.chunks_exact(64) {
        bytes.extend((0..32).map(|i| pair[i] | pair[i + 32] << 4));
    }
}

/// Returns the integers next to a number divided by `unit`.
fn nearest(number: f32, unit: f32) -> impl Iterator<Item = u8> + Clone {
    let nearest = if unit > 0.0 { number / unit } else { 0.0 };
    let nearest = (nearest + 0.5) as i32;
    (nearest - 1..=nearest + 1)
        .filter(|code| (0..64).contains(code))
        .map(|code| code as u8)
}

/// Returns the best scale and minimum for a group; the minimum is not negative.
fn affine(part: &[f32]) -> ScaleAndMin {
    let low = part.iter().copied().fold(0f32, f32::min);
    let high = part.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut best = ScaleAndMin {
        scale: (high - low).max(0.0) / 15.0,
        min: -low,
    };
    if high <= low {
        return best;
    }
    let mut least = best.error(part);
    for step in 0..=20 {
        let levels = 14.0 + 0.1 * step as f32;
        let first = ScaleAndMin {
            scale: (high - low) / levels,
            min: -low,
        };
        let fitted = first.fitted(part);
        let error = fitted.error(part);
        if error < least {
            (least, best) = (error, fitted);
        }
    }
    best
}

impl ScaleAndMin {
    /// Returns the quantized value nearest to a number, from 0 to 15; `inverse` is the inverse of the scale.
    #[inline(always)]
    fn code(self, number: f32, inverse: f32) -> f32 {
        whole(((number + self.min) * inverse).clamp(0.0, 15.0))
    }

    fn error(self, numbers: &[f32]) -> f32 {
        let inverse = inverse(self.scale);
        let mut sums = [0f32; 8];
        for numbers in numbers.as_chunks::<8>().0 {
            for (sum, &number) in sums.iter_mut().zip(numbers) {
                let off = self.scale * self.code(number, inverse) - self.min - number;
                *sum += off * off;
            }
        }
        sums.iter().sum()
    }

    /// Returns the scale and minimum with least squares for this one's quantized values.
    fn fitted(self, numbers: &[f32]) -> Self {
        let inverse = inverse(self.scale);
        let mut sums = [[0f32; 4]; 4];
        for numbers in numbers.as_chunks::<4>().0 {
            for (i, &number) in numbers.iter().enumerate() {
                let code = self.code(number, inverse);
                sums[0][i] += code;
                sums[1][i] += code * code;
                sums[2][i] += number;
                sums[3][i] += code * number;
            }
        }
        let [q, qq, x, qx] = sums.map(|sums| sums.iter().sum::<f32>());
        let n = numbers.len() as f32;
        let determinant = n * qq - q * q;
        if determinant <= 0.0 {
            return self;
        }
        let scale = (n * qx - q * x) / determinant;
        let min = (q * qx - qq * x) / determinant;
        match min >= 0.0 {
            true => Self { scale, min },
            false => Self {
                scale: qx / qq,
                min: 0.0,
            },
        }
    }
}

/// Quantizes to Q6_K: sixteen groups of 16 values with a signed scale each.
pub(super) fn sixteens(block: &[f32], bytes: &mut Vec<u8>) {
    let mut best = [0f32; 16];
    for (best, part) in best.iter_mut().zip(block.chunks_exact(16)) {
        *best = symmetric(part);
    }
    let largest = best.iter().fold(0f32, |largest, &scale| {
        if scale.abs() > largest.abs() {
            scale
        } else {
            largest
        }
    });
    let d = f16::from_f32(largest / -128.0);
    let unit = d.to_f32();
    let (mut scales, mut codes) = ([0i8; 16], [32u8; 256]);
    for (part, numbers) in block.chunks_exact(16).enumerate() {
        let nearest = if unit == 0.0 { 0.0 } else { best[part] / unit };
        let nearest = nearest.round() as i32;
        let mut least = f32::INFINITY;
        for code in (nearest - 1..=nearest + 1).filter(|code| (-128..128).contains(code)) {
            let error = error_of_sixes(numbers, unit * code as f32);
            if error < least {
                (least, scales[part]) = (error, code as i8);
            }
        }
        let scale = unit * f32::from(scales[part]);
        for (code, &number) in codes[16 * part..].iter_mut().zip(numbers) {
            *code = (six(number, inverse(scale)) + 32.0) as u8;
        }
    }
    for half in codes.chunks_exact(128) {
        bytes.extend((0..64).map(|i| half[i] & 15 | (half[i + 64] & 15) << 4));
    }
    for half in codes.chunks_exact(128) {
        let high = |i: usize, quarter: usize| half[32 * quarter + i] >> 4 << (2 * quarter);
        bytes.extend((0..32).map(|i| high(i, 0) | high(i, 1) | high(i, 2) | high(i, 3)));
    }
    bytes.extend(scales.map(|scale| scale as u8));
    bytes.extend(d.to_le_bytes());
}

/// Returns the best scale for a group, whose quantized values range from -32 to 31: the value with the largest magnitude
/// gets the sign that reaches farther.
fn symmetric(part: &[f32]) -> f32 {
    let largest = part.iter().fold(0f32, |largest, &number| {
        if number.abs() > largest.abs() {
            number
        } else {
            largest
        }
    });
    let (mut best, mut least) = (largest / -32.0, f32::INFINITY);
    if largest == 0.0 {
        return 0.0;
    }
    for step in 0..=20 {
        let first = largest / -(31.0 + 0.1 * step as f32);
        let (mut qq, mut qx) = ([0f32; 4], [0f32; 4]);
        for numbers in part.as_chunks::<4>().0 {
            for (i, &number) in numbers.iter().enumerate() {
                let code = six(number, inverse(first));
                qq[i] += code * code;
                qx[i] += code * number;
            }
        }
        let (qq, qx) = (qq.iter().sum::<f32>(), qx.iter().sum::<f32>());
        let scale = if qq > 0.0 { qx / qq } else { first };
        let error = error_of_sixes(part, scale);
        if error < least {
            (least, best) = (error, scale);
        }
    }
    best
}

/// Returns the quantized value nearest to a number, from -32 to 31.
#[inline(always)]
fn six(number: f32, inverse: f32) -> f32 {
    whole((number * inverse).clamp(-32.0, 31.0))
}

fn error_of_sixes(numbers: &[f32], scale: f32) -> f32 {
    let inverse = inverse(scale);
    let mut sums = [0f32; 4];
    for numbers in numbers.as_chunks::<4>().0 {
        for (sum, &number) in sums.iter_mut().zip(numbers) {
            let off = scale * six(number, inverse) - number;
            *sum += off * off;
        }
    }
    sums.iter().sum()
}

/// Returns the inverse of a scale, and zero for zero.
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
