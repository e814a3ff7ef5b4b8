//! Attention with linear biases (Press et al. 2021, <https://arxiv.org/abs/2108.12409>).

use candle_core::{DType, Device, Result, Tensor};

use crate::config::{AlibiConfig, AlibiRounding, AlibiSlopes};

/// The bias of every head and key, `[batch or 1, n_heads, 1, keys]` on the CPU: `slope · (key - last key)`.
///
/// The softmax takes away whatever all scores of a query share, so a bias by key alone gives what a
/// bias by distance gives, and padding on either side does not matter. Where the layout of slopes is BLOOM's, positions
/// that `keep` `[batch, keys]` drops in the middle are not counted, as in transformers' `build_alibi_tensor`. Rounded
/// products also depend on where counting starts: there it is at the first position that is kept.
pub fn alibi_bias(
    config: &AlibiConfig,
    n_heads: usize,
    keys: usize,
    keep: Option<&Tensor>,
) -> Result<Tensor> {
    let slopes = slopes(config.slopes, n_heads);
    let rows = match (config.slopes, keep) {
        (AlibiSlopes::Appended, Some(keep)) => keep.to_dtype(DType::U32)?.to_vec2::<u32>()?,
        _ => vec![vec![1; keys]],
    };
    let mut bias = Vec::with_capacity(rows.len() * n_heads * keys);
    for row in rows {
        let kept: u32 = row.iter().sum();
        for slope in &slopes {
            let mut counted = 0;
            for keep in &row {
                counted += keep;
                bias.push(match config.rounding {
                    AlibiRounding::None => {
                        let to_last = f64::from(counted) - f64::from(kept);
                        slope * config.scale * to_last
                    }
                    AlibiRounding::Bf16 => {
                        let position = (f64::from(counted) - 1.0) * f64::from(*keep);
                        bf16(bf16(*slope) * bf16(position)) * config.scale
                    }
                });
            }
        }
    }
    let batch = bias.len() / (n_heads * keys).max(1);
    Tensor::from_vec(bias, (batch, n_heads, 1, keys), &Device::Cpu)
}

/// The nearest bfloat16.
fn bf16(value: f64) -> f64 {
    half::bf16::from_f64(value).to_f64()
}

/// One slope per head.
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

    /// Values of transformers 5.23's `build_alibi_tensor` (BLOOM) and `build_mpt_alibi_tensor`.
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
