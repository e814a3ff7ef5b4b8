//! int4 quantization for a weight group: a search for the scale and the minimum with the least squared error.
//!
//! The group's range, and narrower ranges with the same center, are each divided into 15 steps. Weights are rounded
//! to the nearest step. For these 4-bit values, least squares gives the best scale and minimum. The range with the
//! least error wins. Its scale and minimum are rounded to f16, and each weight is rounded to the nearest value
//! again. Relative errors for normally distributed weights, and for Student's t with 4 degrees of freedom, which has
//! outliers like trained weights:
//!
//! ```text
//! group                                  32            64           128
//! range alone                       7.8 %  9.4 %  9.0 % 11.8 % 10.0 % 14.4 %
//! fitted                            7.5 %  8.9 %  8.7 % 11.4 %  9.7 % 14.0 %
//! fitted, and narrowed to 0.75      7.3 %  8.6 %  8.4 % 11.0 %  9.3 % 13.4 %
//! the same in steps of 0.025        7.3 %  8.6 %  8.4 % 11.0 %  9.3 % 13.4 %
//! both ends apart, 16 ranges        7.1 %  8.5 %  8.3 % 10.9 %  9.2 % 13.3 %
//! ```

use half::f16;

use crate::products::CHUNK;
use crate::vectors::{Real, sum, sum_pairs};

/// The candidate ranges, relative to the group's range.
const RANGES: [f32; 6] = [1.0, 0.95, 0.9, 0.85, 0.8, 0.75];

/// The largest quantized value.
const LARGEST: f32 = 15.0;

/// A quantized weight group, each `code · scale + minimum`.
pub struct Int4Group {
    /// NaN if a weight is not finite.
    pub scale: f16,
    pub minimum: f16,
    /// Quantized values, with zeros after the last weight.
    pub values: [u8; CHUNK],
}

/// Quantizes at most `GROUP` weights. Sums have a fixed order, so that the result is the same on every CPU.
#[inline(always)]
pub fn quantize<const GROUP: usize>(weights: &[f32]) -> Int4Group {
    match <&[f32; GROUP]>::try_from(weights) {
        // A length known at compile time gives loops without remainders.
        Ok(group) => search(group),
        Err(_) => search(weights),
    }
}

#[inline(always)]
fn search(weights: &[f32]) -> Int4Group {
    let mut coded = Int4Group {
        scale: f16::ZERO,
        minimum: f16::ZERO,
        values: [0; CHUNK],
    };
    if weights.is_empty() {
        return coded;
    }
    let (mut least, mut most) = (weights[0], weights[0]);
    let mut is_finite = true;
    for &w in weights {
        least = w.at_most(least);
        most = w.at_least(most);
        is_finite &= w.is_finite();
    }
    if !is_finite {
        coded.scale = f16::NAN;
        return coded;
    }
    let total = sum(weights, |w| w);
    let mut best = Fit::of(&Steps::new(0.0, 0.0), weights, total);
    for share in RANGES {
        // Half the range, because the largest floats' range overflows.
        let (middle, half) = (0.5 * least + 0.5 * most, 0.5 * most - 0.5 * least);
        let steps = Steps::new(half * share * (2.0 / LARGEST), middle - half * share);
        let fit = Fit::of(&steps, weights, total);
        if fit.explained > best.explained {
            best = fit;
        }
    }
    let round = |x: f32| f16::from_f32(x.clamp(-65504.0, 65504.0));
    coded.scale = round(best.scale);
    let n = weights.len() as f32;
    coded.minimum = round((total - coded.scale.to_f32() * best.ones) / n);
    let steps = Steps::new(coded.scale.to_f32(), coded.minimum.to_f32());
    for (code, &w) in coded.values.iter_mut().zip(weights) {
        *code = steps.code(w).1 as u8;
    }
    coded
}

/// A group's least-squares scale for given quantized values.
struct Fit {
    scale: f32,
    /// `Σ q`.
    ones: f32,
    /// How much smaller `Σ (w - q·s - m)²` is than for a constant fit, times the weight count.
    explained: f32,
}

impl Fit {
    /// Fits the nearest steps' values. `total` is the weights' sum.
    #[inline(always)]
    fn of(steps: &Steps, weights: &[f32], total: f32) -> Self {
        let mut values = [0.0; CHUNK];
        let values = &mut values[..weights.len()];
        let (mut ones, mut squares) = (0, 0);
        for (to, &w) in values.iter_mut().zip(weights) {
            let (code, integer) = steps.code(w);
            *to = code;
            ones += integer;
            squares += integer * integer;
        }
        let n = weights.len() as i32;
        let products = sum_pairs(values, weights, |q, w| q * w);
        let covariance = n as f32 * products - ones as f32 * total;
        let variance = n * squares - ones * ones;
        // Variance zero means a single quantized value, and a covariance from rounding errors only.
        let scale = if variance > 0 {
            covariance / variance as f32
        } else {
            0.0
        };
        Self {
            scale,
            ones: ones as f32,
            explained: covariance * scale,
        }
    }
}

/// Equal steps, starting at a minimum.
struct Steps {
    /// Steps per unit, or 0 if steps have no length.
    per_unit: f32,
    minimum: f32,
}

impl Steps {
    #[inline(always)]
    fn new(length: f32, minimum: f32) -> Self {
        // The reciprocal overflows below 2⁻¹⁰⁰. f16 has no such steps either.
        let per_unit = if length > f32::from_bits(27 << 23) {
            1.0 / length
        } else {
            0.0
        };
        Self { per_unit, minimum }
    }

    /// Returns the nearest step, ties to even, as a float and as an integer.
    #[inline(always)]
    fn code(&self, w: f32) -> (f32, i32) {
        // 1.5 · 2²³: adding it to a small value leaves the nearest integer in the mantissa's lowest bits.
        const UNITS: f32 = (3 << 22) as f32;
        let code = ((w - self.minimum) * self.per_unit)
            .at_least(0.0)
            .at_most(LARGEST);
        let shifted = code + UNITS;
        let integer = shifted.to_bits().wrapping_sub(UNITS.to_bits());
        (shifted - UNITS, integer as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::normal;

    fn decoded(weights: &[f32]) -> Vec<f64> {
        let Int4Group {
            scale,
            minimum,
            values,
        } = quantize::<CHUNK>(weights);
        let number = |&code: &u8| f64::from(code) * scale.to_f64() + minimum.to_f64();
        values[..weights.len()].iter().map(number).collect()
    }

    fn squared_error(found: &[f64], weights: &[f32]) -> f64 {
        let errors = found.iter().zip(weights);
        errors
            .map(|(found, &w)| (found - f64::from(w)).powi(2))
            .sum()
    }

    /// Rounds to the nearest step, with 15 steps over the range.
    fn by_range(weights: &[f32]) -> Vec<f64> {
        let of = |of: fn(f32, f32) -> f32| f64::from(weights.iter().copied().reduce(of).unwrap());
        let (least, most) = (of(f32::min), of(f32::max));
        let scale = (most - least) / 15.0;
        let nearest = |&w: &f32| match scale {
            0.0 => least,
            _ => ((f64::from(w) - least) / scale).round() * scale + least,
        };
        weights.iter().map(nearest).collect()
    }

    fn numbers(n: usize, seed: u64) -> Vec<f32> {
        normal(n, 0.0, 0.02, seed)
            .iter()
            .map(|&w| w as f32)
            .collect()
    }

    #[test]
    fn normal_weights_have_the_documented_error_and_less_than_with_the_full_range() {
        let weights = numbers(if cfg!(miri) { 256 } else { 1 << 16 }, 1);
        for (group, documented) in [(32, 0.073), (64, 0.084), (128, 0.093)] {
            let (mut found, mut over_range) = (0.0, 0.0);
            for weights in weights.chunks(group) {
                let error = squared_error(&decoded(weights), weights);
                let plain = squared_error(&by_range(weights), weights);
                // For a single group, rounding to f16 may cancel the gain of the search.
                assert!(error <= 1.01 * plain, "{error:e} against {plain:e}");
                found += error;
                over_range += plain;
            }
            let size: f64 = weights.iter().map(|&w| f64::from(w).powi(2)).sum();
            let [found, over_range] = [found, over_range].map(|error| (error / size).sqrt());
            println!("groups of {group}: {found:.4}, over the range {over_range:.4}");
            assert!(
                (found / documented - 1.0).abs() < 0.02 || cfg!(miri),
                "{found}"
            );
            assert!(found < 0.97 * over_range, "{found} against {over_range}");
        }
    }

    #[test]
    fn weights_on_sixteen_steps_in_f16_are_stored_without_loss() {
        for (scale, minimum) in [(0.25, -2.0), (0.013, -0.104), (1.0, 3.0), (0.0, 0.7)] {
            let [scale, minimum] = [scale, minimum].map(f16::from_f32);
            let step = |i: usize| (i * 7 % 16) as f32 * scale.to_f32() + minimum.to_f32();
            let weights: Vec<f32> = (0..32).map(step).collect();
            let exact: Vec<f64> = weights.iter().map(|&w| w.into()).collect();
            let error = squared_error(&decoded(&weights), &weights);
            let size = squared_error(&vec![0.0; 32], &weights);
            // q·s + m in f64 has digits that the f32 weight lacks.
            assert!(
                error < 1e-13 * size,
                "{scale} {minimum}: {error:e} {exact:?}"
            );
        }
    }

    #[test]
    fn groups_of_any_magnitude_are_quantized_and_groups_with_nan_have_scale_nan() {
        for largest in [65504.0, 1.0, 1e-4] {
            let weights: Vec<f32> = numbers(64, 2).iter().map(|w| w / 0.08 * largest).collect();
            let size = squared_error(&vec![0.0; 64], &weights).sqrt();
            let error = squared_error(&decoded(&weights), &weights).sqrt();
            assert!(
                error < 0.12 * size,
                "{largest}: error {error:e}, size {size:e}"
            );
        }
        assert!(decoded(&[1e-30; 40]).iter().all(|&w| w == 0.0));
        assert_eq!(decoded(&[0.0; 40]), [0.0; 40]);
        assert_eq!(quantize::<CHUNK>(&[]).values, [0; CHUNK]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut weights = numbers(40, 3);
            weights[17] = bad;
            assert!(quantize::<CHUNK>(&weights).scale.is_nan());
        }
    }
}
