//! The sparse mixer: experts are selected one after another, and sampled in training.

use candle_core::{Device, Result, Tensor};

use crate::config::RoutingConfig;
use crate::layers::routing::{among_near, best};
use crate::layers::{Dropout, DropoutSource};
use crate::ops::{ExpertColumns, SoftmaxInput, Value, uploaded};

/// The share of sampled experts, other than the best, whose weight counts as a third: Heun's method.
const THIRDS: f64 = 0.75;
/// One third, with transformers' digits.
const THIRD: f64 = 0.3333;

/// Returns the source of random numbers for training.
pub(in crate::layers) fn noise() -> Result<Dropout> {
    Dropout::new(THIRDS, DropoutSource::default())
}

/// Routing by [`RoutingWeights::AmongNear`](crate::config::RoutingWeights::AmongNear).
pub(in crate::layers) struct SparseMixer<'a> {
    pub routing: &'a RoutingConfig,
    pub tolerance: f64,
    /// The random numbers for training. The dropout's masks select the experts that count in full.
    pub drawn: &'a Dropout,
}

impl SparseMixer<'_> {
    /// Returns for each expert the places in `[rows, top_k]` that selected it, and the weights of all places, given
    /// the router's logits `[rows, n_experts]`.
    pub fn route(&self, logits: &Value, train: bool) -> Result<(Vec<Vec<usize>>, Value)> {
        let (top_k, n_experts) = (self.routing.top_k, logits.width());
        let known = logits.on_host()?;
        let n_rows = known.len() / n_experts;
        let drawn = match train {
            true => (0..top_k).map(|_| self.draw(n_rows, n_experts)).collect(),
            false => Ok(vec![]),
        };
        let drawn: Vec<(Vec<f64>, Vec<u8>)> = drawn?;
        let (mut chosen, mut places) = (Vec::new(), vec![Vec::new(); n_experts]);
        let (mut hidden, mut counts_less) = (Vec::new(), vec![0.0; n_rows * top_k]);
        for (row, scores) in known.chunks_exact(n_experts).enumerate() {
            let all = among_near(
                scores,
                top_k,
                self.tolerance,
                |nth, near| -> Result<usize> {
                    let Some((noise, full)) = drawn.get(nth) else {
                        return Ok(best(near));
                    };
                    // The largest score after adding Gumbel noise is a sample from the softmax.
                    let noise = &noise[row * n_experts..][..n_experts];
                    let noisy: Vec<f64> =
                        near.iter().zip(noise).map(|(s, noise)| s + noise).collect();
                    let expert = best(&noisy);
                    if expert != best(near) && full[row] == 0 {
                        counts_less[row * top_k + nth] = THIRD - 1.0;
                    }
                    Ok(expert)
                },
            )?;
            for (expert, near) in all {
                places[expert].push(chosen.len());
                chosen.push(expert as u32);
                let is_near = |s: &f64| {
                    if s.is_finite() {
                        0.0
                    } else {
                        f64::NEG_INFINITY
                    }
                };
                hidden.extend(near.iter().map(is_near));
            }
        }
        let beside = |numbers: Vec<f64>, dims: &[usize]| {
            let numbers = Tensor::from_vec(numbers, dims, &Device::Cpu)?;
            logits.beside(&uploaded(&numbers, logits.dtype(), &logits.device())?)
        };
        // A row for each choice. Experts that are not near are hidden from its softmax.
        let n_choices = chosen.len();
        let whole_rows: Vec<u32> = (0..n_choices).flat_map(|_| 0..n_experts as u32).collect();
        let rows = logits.gather(&ExpertColumns::Host(whole_rows), top_k * n_experts)?;
        let rows = rows.reshape(vec![n_choices, n_experts])?;
        let shares = rows.add(&beside(hidden, &[n_choices, n_experts])?)?;
        let shares = shares.softmax(SoftmaxInput::Finite)?;
        let weights = shares.gather(&ExpertColumns::Host(chosen), 1)?;
        let weights = weights.reshape(vec![n_rows, top_k])?;
        if !train {
            return Ok((places, weights));
        }
        // The gradient is that of the full weights.
        let less = weights.on_host()?.into_iter().zip(counts_less);
        let less = less.map(|(weight, less)| weight * less).collect();
        let weights = weights.add(&beside(less, &[n_rows, top_k])?)?;
        Ok((places, weights))
    }

    /// Draws the random numbers for one choice in each row: noise for the scores of all experts, and a mask of rows
    /// whose choice counts in full in any case.
    fn draw(&self, n_rows: usize, n_experts: usize) -> Result<(Vec<f64>, Vec<u8>)> {
        let uniform = self.drawn.source().uniform(n_rows * n_experts)?;
        let exponential = |u: f64| -(-u).ln_1p();
        let noise = uniform.into_iter().map(|u| -exponential(u).ln());
        let full = self.drawn.mask(&[n_rows], &Device::Cpu, true)?;
        let full = full.map_or(Ok(vec![1; n_rows]), |full| full.to_vec1())?;
        Ok((noise.collect(), full))
    }
}
