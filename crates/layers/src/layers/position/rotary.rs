//! Cosine and sine tables for rotary position embeddings, with all scalings that transformers has.

use std::{cell::OnceCell, f64::consts::TAU, ops::Range};

use candle_core::{DType, Device, Result, Tensor};

use crate::config::{
    PatchAxes, PatchCoordinates, PositionTemperature, RotaryAxes, RotaryConfig, RotaryScaling,
};
use crate::ops::{Constants, Route, route, uploaded};

/// The cosine and sine tables of a rotary position embedding, each `[batch or 1, seq, pairs]`.
///
/// Angles are computed in f64 and rounded once, to f32 or f64. In half precision, angles for positions beyond a few
/// hundred would be noise.
#[derive(Clone, Debug)]
pub struct RotaryTables {
    /// Cosines.
    pub cos: Tensor,
    /// Sines.
    pub sin: Tensor,
}

impl RotaryTables {
    /// Returns tables that rotate by an angle of 0 and multiply queries with `pairs` pairs by a temperature, or
    /// `None` if the temperature is 1 everywhere.
    pub(crate) fn of_temperature(
        (temperature, pairs): (PositionTemperature, usize),
        positions: &[Vec<u32>],
        dtype: DType,
        device: &Device,
    ) -> Result<Option<Self>> {
        let seq = positions.first().map_or(0, Vec::len);
        let factors = positions.iter().flatten();
        let factors: Vec<f64> = factors
            .map(|&position| temperature.factor(position))
            .collect();
        if factors.iter().all(|&factor| factor == 1.0) {
            return Ok(None);
        }
        let shape = (positions.len(), seq, 1);
        let factors = Tensor::from_vec(factors, shape, &Device::Cpu)?;
        let cos = factors.broadcast_as((positions.len(), seq, pairs))?;
        let cos = uploaded(&cos.contiguous()?, dtype, device)?;
        let sin = cos.zeros_like()?;
        Ok(Some(Self { cos, sin }))
    }

    /// Computes the tables for the given positions: one row for all sequences or one row each, all with the same
    /// length.
    pub fn new(
        config: &RotaryConfig,
        positions: &[Vec<u32>],
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        Self::of_axes(config, &[positions], (dtype, device))
    }

    /// Computes the tables for positions with one axis, or with time, row and column
    /// ([`TokenAxes`](crate::config::TokenAxes)), all with one shape.
    pub(crate) fn of_axes<R: AsRef<[Vec<u32>]>>(
        config: &RotaryConfig,
        of_axes: &[R],
        place: (DType, &Device),
    ) -> Result<Self> {
        let all = of_axes.iter().flat_map(AsRef::as_ref).flatten();
        let last = all.max().copied().unwrap_or(0);
        let (frequencies, factor) = frequencies(config, last as usize + 1);
        // The axis by which each pair rotates.
        let axis = |pair| match config.axes {
            Some(RotaryAxes::Tokens(axes)) if of_axes.len() > 1 => axes.axis(pair),
            _ => 0,
        };
        let turning: Vec<_> = frequencies
            .iter()
            .enumerate()
            .map(|(pair, frequency)| (of_axes[axis(pair)].as_ref(), frequency))
            .collect();
        let rows = of_axes[0].as_ref();
        let seq = rows.first().map_or(0, Vec::len);
        let tokens = (0..rows.len()).flat_map(|row| (0..seq).map(move |token| (row, token)));
        let angles = tokens.flat_map(|(row, token)| {
            let angle =
                move |&(of, frequency): &(&[Vec<u32>], &f64)| f64::from(of[row][token]) * frequency;
            turning.iter().map(angle)
        });
        let shape = [rows.len(), seq, turning.len()];
        Self::of_angles((angles.collect(), shape), factor, place)
    }

    /// Computes the tables for an image's patches, down and across, after front tokens that do not rotate
    /// ([`PatchAxes`](crate::config::PatchAxes)).
    pub(crate) fn of_patches(
        config: &RotaryConfig,
        axes: &PatchAxes,
        grid: [usize; 2],
        place: (DType, &Device),
    ) -> Result<Self> {
        let pairs = config.dim / 2;
        let half = RotaryConfig {
            dim: pairs,
            ..config.clone()
        };
        let (frequencies, _) = frequencies(&half, 0);
        let at = |i: usize, n: usize| match axes.coordinates {
            PatchCoordinates::Centers => TAU * (2.0 * (i as f64 + 0.5) / n as f64 - 1.0),
            PatchCoordinates::Counted => i as f64,
        };
        let places = axes.places(grid);
        let patches = places
            .iter()
            .flat_map(|&[row, column]| [at(row, grid[0]), at(column, grid[1])]);
        let angles = patches.flat_map(|at| frequencies.iter().map(move |f| at * f));
        let front = std::iter::repeat_n(0.0, axes.n_front * pairs);
        let shape = [1, axes.n_front + places.len(), pairs];
        Self::of_angles((front.chain(angles).collect(), shape), 1.0, place)
    }

    /// Computes the cosines and sines of angles, times `factor`.
    fn of_angles(
        (angles, shape): (Vec<f64>, [usize; 3]),
        factor: f64,
        (dtype, device): (DType, &Device),
    ) -> Result<Self> {
        // Rounded on the CPU: Metal has no f64.
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f64> = angles.iter().map(|&angle| of(angle) * factor).collect();
            uploaded(
                &Tensor::from_vec(values, &shape, &Device::Cpu)?,
                dtype,
                device,
            )
        };
        Ok(Self {
            cos: table(f64::cos)?,
            sin: table(f64::sin)?,
        })
    }
}

impl RotaryTables {
    /// Returns a range out of longer tables that stay on a device. Returns `None` on the CPU, and for scalings that
    /// depend on the length.
    pub(crate) fn kept(
        config: &RotaryConfig,
        range: Range<usize>,
        (dtype, device): (DType, &Device),
        constants: &Constants,
    ) -> Result<Option<Self>> {
        let by_length = matches!(
            config.scaling,
            RotaryScaling::DynamicNtk { .. } | RotaryScaling::LongRope { .. }
        );
        if by_length || route(device) == Route::Kernels {
            return Ok(None);
        }
        let n = range.end.next_power_of_two().max(LEAST_KEPT);
        // Both are computed for the first that is missing.
        let made = OnceCell::new();
        let all = || -> Result<&Self> {
            if let Some(made) = made.get() {
                return Ok(made);
            }
            let all = Self::new(config, &[(0..n as u32).collect()], dtype, device)?;
            Ok(made.get_or_init(|| all))
        };
        let kept = |name: &str, of: fn(&Self) -> &Tensor| {
            let name = format!("{name} {n} {config:?}");
            let table = constants.table(name, (dtype, device), || Ok(of(all()?).clone()))?;
            table.narrow(1, range.start, range.len())
        };
        Ok(Some(Self {
            cos: kept("cosines", |all| &all.cos)?,
            sin: kept("sines", |all| &all.sin)?,
        }))
    }
}

/// The number of positions in the shortest tables that stay on a device.
const LEAST_KEPT: usize = 512;

/// Returns radians per position for every pair, and the factor on cosine and sine, for sequences up to `seq`.
///
/// transformers' `ROPE_INIT_FUNCTIONS`
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/modeling_rope_utils.py>).
pub fn frequencies(config: &RotaryConfig, seq: usize) -> (Vec<f64>, f64) {
    let dim = config.frequency_dim.unwrap_or(config.dim) as f64;
    let pairs = config.dim / 2;
    let frequencies_of_base = |base: f64| -> Vec<f64> {
        (0..pairs)
            .map(|i| base.powf(-2.0 * i as f64 / dim))
            .collect()
    };
    let plain = frequencies_of_base(config.theta);
    match &config.scaling {
        RotaryScaling::None => (plain, 1.0),
        RotaryScaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
        RotaryScaling::Proportional { n_turning, factor } => {
            let turning = plain.iter().enumerate();
            let scaled_frequency =
                |(i, f): (usize, &f64)| if i < *n_turning { f / factor } else { 0.0 };
            (turning.map(scaled_frequency).collect(), 1.0)
        }
        RotaryScaling::DynamicNtk {
            factor,
            max_positions,
        } => {
            let longest = seq.max(*max_positions) as f64;
            let stretch = factor * longest / *max_positions as f64 - (factor - 1.0);
            (
                frequencies_of_base(config.theta * stretch.powf(dim / (dim - 2.0))),
                1.0,
            )
        }
        RotaryScaling::Yarn {
            factor,
            attention_factor,
            beta_fast,
            beta_slow,
            original_positions,
            truncate,
        } => {
            let correction = |rotations: f64| {
                dim * (*original_positions as f64 / (rotations * TAU)).ln()
                    / (2.0 * config.theta.ln())
            };
            let (mut low, mut high) = (correction(*beta_fast), correction(*beta_slow));
            if *truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
            if low == high {
                high += 0.001; // as transformers, against a division by zero
            }
            let scaled = plain.iter().enumerate().map(|(i, frequency)| {
                let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                frequency / factor * ramp + frequency * (1.0 - ramp)
            });
            (scaled.collect(), *attention_factor)
        }
        RotaryScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_positions,
        } => {
            let original = *original_positions as f64;
            let scaled = plain.iter().map(|frequency| {
                let wavelength = TAU / frequency;
                if wavelength > original / low_freq_factor {
                    frequency / factor
                } else if wavelength < original / high_freq_factor {
                    *frequency
                } else {
                    let smooth = (original / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            });
            (scaled.collect(), 1.0)
        }
        RotaryScaling::LongRope {
            short_factor,
            long_factor,
            attention_factor,
            long_attention_factor,
            original_positions,
        } => {
            let (divisors, factor) = match seq > *original_positions {
                true => (
                    long_factor,
                    long_attention_factor.unwrap_or(*attention_factor),
                ),
                false => (short_factor, *attention_factor),
            };
            let scaled = plain.iter().zip(divisors).map(|(f, divisor)| f / divisor);
            (scaled.collect(), factor)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_frequencies(theta: f64, scaling: RotaryScaling, seq: usize, expected: [f64; 4]) {
        let config = RotaryConfig::new(8, theta).with_scaling(scaling);
        let (found, _) = frequencies(&config, seq);
        assert_eq!(found.len(), 4);
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
        }
    }

    /// Compares with transformers 5.23's `_compute_longrope_parameters`, in f32.
    #[test]
    fn longrope_changes_its_divisors_after_the_original_length() {
        let scaling = || RotaryScaling::LongRope {
            short_factor: vec![1.0, 1.5, 2.0, 2.5],
            long_factor: vec![3.0, 4.0, 5.0, 6.0],
            attention_factor: 1.25,
            long_attention_factor: None,
            original_positions: 8,
        };
        let short = [1.0, 0.066_666_67, 0.005, 0.0004];
        assert_frequencies(10_000.0, scaling(), 8, short);
        let long = [0.333_333_34, 0.025, 0.002, 0.000_166_666_67];
        assert_frequencies(10_000.0, scaling(), 9, long);
    }

    /// Compares with transformers 5.23's `_compute_proportional_rope_parameters` for half a head, in f32.
    #[test]
    fn the_last_pairs_of_a_proportional_rotation_stand_still() {
        let scaling = RotaryScaling::Proportional {
            n_turning: 2,
            factor: 4.0,
        };
        let config = RotaryConfig::new(8, 10_000.0).with_scaling(scaling);
        assert_eq!(frequencies(&config, 1).0, [0.25, 0.025, 0.0, 0.0]);
    }

    /// Compares with transformers 5.23's `_compute_yarn_parameters`, in f32.
    #[test]
    fn yarns_ramp_ends_within_the_head() {
        let scaling = RotaryScaling::Yarn {
            factor: 4.0,
            attention_factor: 1.5,
            beta_fast: 5000.0,
            beta_slow: 1.0,
            original_positions: 32_768,
            truncate: true,
        };
        let expected = [1.0, 0.282_346_22, 0.078_571_43, 0.021_458_313];
        assert_frequencies(100.0, scaling, 1, expected);
    }
}
