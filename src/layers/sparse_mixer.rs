//! Experts chosen one after another, and drawn in training: a sparse mixer.

use candle_core::{Device, Result, Tensor};

use crate::config::RoutingConfig;
use crate::layers::Dropout;
use crate::layers::routing::{among_near, best};
use crate::ops::{Columns, Scores, Value, uploaded};

/// How many of those that are drawn and are not the best count as a third of themselves: Heun's method.
pub(super) const THIRDS: f64 = 0.75;
/// A third, with the digits that it has in transformers.
const THIRD: f64 = 0.3333;

/// How a router chooses by [`RoutingWeights::AmongNear`](crate::config::RoutingWeights::AmongNear).
pub(super) struct SparseMixer<'a> {
    pub routing: &'a RoutingConfig,
    pub tolerance: f64,
    /// In training, experts are drawn from its source, and its masks say which count in full.
    pub drawn: &'a Dropout,
}

impl SparseMixer<'_> {
    /// For each expert the places in `[rows, top_k]` that chose it by the router's numbers `[rows, n_experts]`, and the weights of
    /// all places.
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
                (top_k, self.tolerance),
                |nth, near| -> Result<usize> {
                    let Some((noise, full)) = drawn.get(nth) else {
                        return Ok(best(near));
                    };
                    // The largest score behind noise of Gumbel's distribution is a draw from the softmax.
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
        // A row for each choice, with what is not near hidden from its softmax.
        let n_choices = chosen.len();
        let whole_rows: Vec<u32> = (0..n_choices).flat_map(|_| 0..n_experts as u32).collect();
        let rows = logits.gather(&Columns::Host(whole_rows), top_k * n_experts)?;
        let rows = rows.reshape(vec![n_choices, n_experts])?;
        let shares = rows.add(&beside(hidden, &[n_choices, n_experts])?)?;
        let shares = shares.softmax(Scores::Finite)?;
        let weights = shares.gather(&Columns::Host(chosen), 1)?;
        let weights = weights.reshape(vec![n_rows, top_k])?;
        if !train {
            return Ok((places, weights));
        }
        // Their gradient is that of weights which count in full.
        let less = weights.on_host()?.into_iter().zip(counts_less);
        let less = less.map(|(weight, less)| weight * less).collect();
        let weights = weights.add(&beside(less, &[n_rows, top_k])?)?;
        Ok((places, weights))
    }

    /// For one choice of each row: noise on the scores of all experts, and whether what is drawn counts in full in any case.
    fn draw(&self, n_rows: usize, n_experts: usize) -> Result<(Vec<f64>, Vec<u8>)> {
        let uniform = self.drawn.source().uniform(n_rows * n_experts)?;
        let exponential = |u: f64| -(-u).ln_1p();
        let noise = uniform.into_iter().map(|u| -exponential(u).ln());
        let full = self.drawn.mask(&[n_rows], &Device::Cpu, true)?;
        let full = full.map_or(Ok(vec![1; n_rows]), |full| full.to_vec1())?;
        Ok((noise.collect(), full))
    }
}
