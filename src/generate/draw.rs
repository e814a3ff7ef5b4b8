//! A token at random from the likeliest ones.

use candle_core::{Result, bail};

use super::Sampling;
use super::sampler::largest;

/// The tokens to choose from, and their scores: how far their logits are below the largest, over the temperature.
pub(super) struct Candidates {
    scores: Vec<(u32, f32)>,
}

/// Of how many tokens top-p first looks whether they suffice.
const FIRST_FEW: usize = 64;

impl Candidates {
    /// Applies temperature, top-k, top-p and min-p, in this order.
    pub fn new(logits: &[f32], sampling: &Sampling) -> Self {
        let (largest, temperature) = (largest(logits), sampling.temperature as f32);
        let score = |(token, logit): (usize, &f32)| (token as u32, (logit - largest) / temperature);
        let mut candidates = Self {
            scores: logits.iter().enumerate().map(score).collect(),
        };
        if let Some(k) = sampling.top_k {
            candidates.keep_top_k(k);
        }
        if let Some(p) = sampling.top_p.filter(|&p| p < 1.0) {
            candidates.keep_top_p(p);
        }
        if let Some(p) = sampling.min_p {
            candidates.scores.retain(|&(_, score)| weight(score) >= p);
        }
        candidates
    }

    /// The `k` likeliest, and those that are as likely as the last of them.
    fn keep_top_k(&mut self, k: usize) {
        if k < self.scores.len() {
            let (_, &mut (_, last), _) = self.scores.select_nth_unstable_by(k - 1, falling);
            self.scores.retain(|&(_, score)| score >= last);
        }
    }

    /// The fewest of the likeliest whose probabilities add up to `p`, and at least one.
    fn keep_top_p(&mut self, p: f64) {
        let total: f64 = self.weights().sum();
        let (mut sorted, mut before) = (0, 0.0);
        // A few tokens are enough almost always, and sorting all takes longer than all else.
        let mut few = FIRST_FEW;
        while sorted < self.scores.len() {
            let rest = &mut self.scores[sorted..];
            let n = few.min(rest.len());
            if n < rest.len() {
                rest.select_nth_unstable_by(n, falling);
            }
            rest[..n].sort_unstable_by(falling);
            for at in sorted..sorted + n {
                if before >= p * total && at > 0 {
                    self.scores.truncate(at);
                    return;
                }
                before += weight(self.scores[at].1);
            }
            sorted += n;
            few *= 8;
        }
    }

    /// The token at this share of all probabilities, from 0 to 1.
    pub fn drawn(&self, share: f64) -> Result<u32> {
        let mut rest = share * self.weights().sum::<f64>();
        for &(token, score) in &self.scores {
            rest -= weight(score);
            if rest < 0.0 {
                return Ok(token);
            }
        }
        // Rounding may leave a little behind the last.
        let likely = self.scores.iter().rfind(|&&(_, score)| weight(score) > 0.0);
        match likely {
            Some(&(token, _)) => Ok(token),
            None => bail!("no token can be chosen: all logits are -inf"),
        }
    }

    fn weights(&self) -> impl Iterator<Item = f64> {
        self.scores.iter().map(|&(_, score)| weight(score))
    }
}

/// What the probability of a score is proportional to.
fn weight(score: f32) -> f64 {
    f64::from(score.exp())
}

/// From the likeliest on; of those that are as likely, the first comes first.
fn falling(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}
