//! A group of weights as codes of 4 bits, with the scale and the minimum of the least squared error that a search finds.
//!
//! The range of the group, and narrower ones about its middle, are each divided into 15 steps. The codes of the nearest steps ask
//! for the scale and the minimum that fit them best by least squares; of the range whose fit leaves the least
//! error, these are rounded to f16, and each weight takes the code nearest to it. Relative errors of normally distributed weights, and of Student's t with 4 degrees of
//! freedom, which has outliers as trained weights have:
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

/// The ranges that are tried, as shares of the group's.
const RANGES: [f32; 6] = [1.0, 0.95, 0.9, 0.85, 0.8, 0.75];

/// The largest code.
const LARGEST: f32 = 15.0;

/// A group of weights, each `code · scale + minimum`.
pub struct Coded {
    /// NaN, if a weight is not finite.
    pub scale: f16,
    pub minimum: f16,
    /// Zeros behind the last weight.
    pub codes: [u8; CHUNK],
}

/// Quantizes at most `GROUP` weights. Sums have a fixed order, so that the codes are the same on every CPU.
#[inline(always)]
pub fn quantize<const GROUP: usize>(weights: &[f32]) -> Coded {
    match <&[f32; GROUP]>::try_from(weights) {
        // A length known at compile time makes loops without remainders.
        Ok(group) => search(group),
        Err(_) => search(weights),
    }
}

#[inline(always)]
fn search(weights: &[f32]) -> Coded {
    let mut coded = Coded {
        scale: f16::ZERO,
        minimum: f16::ZERO,
        codes: [0; CHUNK],
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
        // Halves, as the range of the largest numbers overflows.
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
    for (code, &w) in coded.codes.iter_mut().zip(weights) {
        *code = steps.code(w).1 as u8;
    }
    coded
}

/// The scale that fits some codes of a group best by least squares.
struct Fit {
    scale: f32,
    /// `Σ q`.
    ones: f32,
    /// By how much less `Σ (w - q·s - m)²` is than without codes, times the number of weights.
    explained: f32,
}

impl Fit {
    /// With the codes of the nearest steps; `total` is the sum of the weights.
    #[inline(always)]
    fn of(steps: &Steps, weights: &[f32], total: f32) -> Self {
        let mut codes = [0.0; CHUNK];
        let codes = &mut codes[..weights.len()];
        let (mut ones, mut squares) = (0, 0);
        for (to, &w) in codes.iter_mut().zip(weights) {
            let (code, integer) = steps.code(w);
            *to = code;
            ones += integer;
            squares += integer * integer;
        }
        let n = weights.len() as i32;
        let products = sum_pairs(codes, weights, |q, w| q * w);
        let covariance = n as f32 * products - ones as f32 * total;
        let variance = n * squares - ones * ones;
        // Without a variance there is one code, and no covariance but of roundings.
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

/// Equal steps from a minimum upwards.
struct Steps {
    /// In a unit; 0 of steps without a length.
    per_unit: f32,
    minimum: f32,
}

impl Steps {
    #[inline(always)]
    fn new(length: f32, minimum: f32) -> Self {
        // Below 2⁻¹⁰⁰, where there is no f16 either, reciprocals overflow.
        let per_unit = if length > f32::from_bits(27 << 23) {
            1.0 / length
        } else {
            0.0
        };
        Self { per_unit, minimum }
    }

    /// The number of the nearest step, ties to even; also as an integer.
    #[inline(always)]
    fn code(&self, w: f32) -> (f32, i32) {
        // 1.5 · 2²³: adding it to a small number leaves the nearest integer in the lowest bits of the mantissa.
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
        let Coded {
            scale,
            minimum,
            codes,
        } = quantize::<CHUNK>(weights);
        let number = |&code: &u8| f64::from(code) * scale.to_f64() + minimum.to_f64();
        codes[..weights.len()].iter().map(number).collect()
    }

    fn squared_error(found: &[f64], weights: &[f32]) -> f64 {
        let errors = found.iter().zip(weights);
        errors
            .map(|(found, &w)| (found - f64::from(w)).powi(2))
            .sum()
    }

    /// The nearest of 15 steps over the range.
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
    fn normal_weights_err_as_documented_and_less_than_over_their_range() {
        let weights = numbers(if cfg!(miri) { 256 } else { 1 << 16 }, 1);
        for (group, documented) in [(32, 0.073), (64, 0.084), (128, 0.093)] {
            let (mut found, mut over_range) = (0.0, 0.0);
            for weights in weights.chunks(group) {
                let error = squared_error(&decoded(weights), weights);
                let plain = squared_error(&by_range(weights), weights);
                // Of a single group, f16 may take back what the search gained.
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
    fn weights_on_sixteen_steps_of_f16_numbers_are_stored_without_loss() {
        for (scale, minimum) in [(0.25, -2.0), (0.013, -0.104), (1.0, 3.0), (0.0, 0.7)] {
            let [scale, minimum] = [scale, minimum].map(f16::from_f32);
            let step = |i: usize| (i * 7 % 16) as f32 * scale.to_f32() + minimum.to_f32();
            let weights: Vec<f32> = (0..32).map(step).collect();
            let exact: Vec<f64> = weights.iter().map(|&w| w.into()).collect();
            let error = squared_error(&decoded(&weights), &weights);
            let size = squared_error(&vec![0.0; 32], &weights);
            // q·s + m in f64 has digits that the weight in f32 lacks.
            assert!(
                error < 1e-13 * size,
                "{scale} {minimum}: {error:e} {exact:?}"
            );
        }
    }

    #[test]
    fn groups_of_every_size_of_numbers_keep_their_codes_or_say_that_they_have_none() {
        for largest in [65504.0, 1.0, 1e-4] {
            let weights: Vec<f32> = numbers(64, 2).iter().map(|w| w / 0.08 * largest).collect();
            let size = squared_error(&vec![0.0; 64], &weights).sqrt();
            let error = squared_error(&decoded(&weights), &weights).sqrt();
            assert!(error < 0.12 * size, "{largest}: {error:e} of {size:e}");
        }
        assert!(decoded(&[1e-30; 40]).iter().all(|&w| w == 0.0));
        assert_eq!(decoded(&[0.0; 40]), [0.0; 40]);
        assert_eq!(quantize::<CHUNK>(&[]).codes, [0; CHUNK]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut weights = numbers(40, 3);
            weights[17] = bad;
            assert!(quantize::<CHUNK>(&weights).scale.is_nan());
        }
    }
}
