//! Attention with linear biases (Press et al. 2021, <https://arxiv.org/abs/2108.12409>).

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use crate::config::{AlibiConfig, AlibiRounding, AlibiSlopes};
use crate::ops::BiasTensor;

/// Returns the bias of every head and key, `[batch or 1, n_heads, 1, keys]` in f64 on the CPU: `slope · (key - last key)`.
/// The last key is the last one that `keep` `[batch, keys]` keeps.
///
/// Softmax is invariant to a constant shared by all scores for a query, so a bias by key has the same result as a
/// bias by distance. Because keys are counted from the last kept key, the padding after it does not change any bits.
/// With BLOOM's slopes, positions that `keep` drops in the middle are not counted, as in transformers'
/// `build_alibi_tensor`. Rounded products also depend on where counting starts: with BLOOM's slopes it starts at the
/// first kept position.
pub fn alibi_bias(
    config: &AlibiConfig,
    n_heads: usize,
    keys: usize,
    keep: Option<&Tensor>,
) -> Result<BiasTensor> {
    let slopes = slopes(config.slopes, n_heads);
    let rows = match keep {
        Some(keep) => keep.to_dtype(DType::U32)?.to_vec2::<u32>()?,
        None => vec![vec![1; keys]],
    };
    let mut bias = Vec::with_capacity(rows.len() * n_heads * keys);
    for row in rows {
        let mut counted = 0;
        let count = |&keep: &u32| {
            counted += match config.slopes {
                AlibiSlopes::Appended => keep,
                AlibiSlopes::Interleaved { .. } => 1,
            };
            f64::from(counted)
        };
        let positions: Vec<f64> = row.iter().map(count).collect();
        let last_kept = row.iter().rposition(|&keep| keep == 1);
        let last = last_kept.map_or(0.0, |last| positions[last]);
        for slope in &slopes {
            bias.extend(positions.iter().zip(&row).map(
                |(position, &keep)| match config.rounding {
                    AlibiRounding::None => slope * config.scale * (position - last),
                    AlibiRounding::Bf16 => {
                        let position = (position - 1.0) * f64::from(keep);
                        bf16(bf16(*slope) * bf16(position)) * config.scale
                    }
                },
            ));
        }
    }
    let batch = bias.len() / (n_heads * keys).max(1);
    let bias = Tensor::from_vec(bias, (batch, n_heads, 1, keys), &Device::Cpu)?;
    Ok(BiasTensor::by_score(bias))
}

/// Returns the bias on both sides of a query in f64 on the CPU, by distance: `-slope · |query - key|`. The queries are at the
/// positions in `queries`, and the keys from 0 on.
pub fn alibi_on_both_sides(
    config: &AlibiConfig,
    n_heads: usize,
    queries: Range<usize>,
    keys: usize,
) -> Result<BiasTensor> {
    let distances = (queries.len() + keys).saturating_sub(1);
    // The first element is the distance of key 0 from the last query.
    let last = queries.end.saturating_sub(1);
    let values = slopes(config.slopes, n_heads)
        .into_iter()
        .flat_map(|slope| {
            (0..distances).map(move |key| -slope * config.scale * last.abs_diff(key) as f64)
        });
    let bias = Tensor::from_vec(values.collect(), (n_heads, distances), &Device::Cpu)?;
    Ok(BiasTensor::by_distance(bias))
}

/// Rounds to the nearest bfloat16.
fn bf16(value: f64) -> f64 {
    half::bf16::from_f64(value).to_f64()
}

/// Returns one slope per head.
fn slopes(layout: AlibiSlopes, n_heads: usize) -> Vec<f64> {
    // `2^(-max·i/n)` for i from 1 to n.
    let geometric = |n: usize, max: f64| (1..=n).map(move |i| (-max * i as f64 / n as f64).exp2());
    match layout {
        AlibiSlopes::Appended => {
            let below = match n_heads.is_power_of_two() {
                true => n_heads,
                false => n_heads.next_power_of_two() / 2,
            };
            let extra = geometric(2 * below, 8.0).step_by(2);
            geometric(below, 8.0).chain(extra).take(n_heads).collect()
        }
        AlibiSlopes::Interleaved { max } => {
            let all: Vec<f64> = geometric(n_heads.next_power_of_two(), max).collect();
            match n_heads.is_power_of_two() {
                true => all,
                false => {
                    let odd = all.iter().skip(1).step_by(2);
                    odd.chain(all.iter().step_by(2))
                        .take(n_heads)
                        .copied()
                        .collect()
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with transformers 5.23's `build_alibi_tensor` (BLOOM) and `build_mpt_alibi_tensor`.
    #[test]
    fn slopes_are_those_of_bloom_and_mpt() {
        assert_eq!(
            slopes(AlibiSlopes::Appended, 4),
            [0.25, 0.0625, 0.015625, 0.00390625]
        );
        let six = slopes(AlibiSlopes::Appended, 6);
        assert_eq!(six[..4], [0.25, 0.0625, 0.015625, 0.00390625]);
        assert_eq!(six[4..], [0.5, 0.125]);
        let three = slopes(AlibiSlopes::Interleaved { max: 8.0 }, 3);
        assert_eq!(three, [0.0625, 0.00390625, 0.25]);
    }
}
