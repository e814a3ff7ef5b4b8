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
    /// Applies the settings in the order of transformers.
    pub fn new(logits: &[f32], sampling: &Sampling) -> Self {
        let (largest, temperature) = (largest(logits), sampling.temperature as f32);
        let score = |(token, logit): (usize, &f32)| (token as u32, (logit - largest) / temperature);
        let mut candidates = Self {
            scores: logits.iter().enumerate().map(score).collect(),
        };
        if let Some(share) = sampling.top_h {
            candidates.keep_top_h(share);
        }
        if let Some(k) = sampling.top_k {
            candidates.keep_top_k(k);
        }
        if let Some(p) = sampling.top_p.filter(|&p| p < 1.0) {
            candidates.keep_top_p(p);
        }
        if let Some(p) = sampling.min_p {
            candidates.scores.retain(|&(_, score)| weight(score) >= p);
        }
        if let Some(mass) = sampling.typical_p.filter(|&mass| mass < 1.0) {
            candidates.keep_typical(mass);
        }
        if let Some(least) = sampling.epsilon_cutoff {
            candidates.keep_likelier_than(least);
        }
        if let Some(cutoff) = sampling.eta_cutoff {
            let by_entropy = cutoff.sqrt() * (-candidates.entropy()).exp();
            candidates.keep_likelier_than(cutoff.min(by_entropy));
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

    /// Of the 100 likeliest, the fewest whose parts of the entropy add up to this share of it, and at least one.
    fn keep_top_h(&mut self, share: f64) {
        const TOP: usize = 100;
        self.scores.sort_unstable_by(falling);
        self.scores.truncate(TOP);
        let total: f64 = self.weights().sum();
        let limit = share * self.entropy();
        let mut sum = 0.0;
        let within = |&(_, score): &(u32, f32)| {
            sum += part_of_entropy(weight(score) / total);
            sum <= limit
        };
        let n = self
            .scores
            .iter()
            .map(within)
            .position(|is_within| !is_within);
        self.scores.truncate(n.unwrap_or(TOP).max(1));
    }

    /// The fewest of the tokens whose information is nearest to the entropy that have this mass.
    fn keep_typical(&mut self, mass: f64) {
        let total: f64 = self.weights().sum();
        let entropy = self.entropy();
        let distance = |score: f32| (-(weight(score) / total).ln() - entropy).abs();
        let mut sorted: Vec<(f64, f32)> = { self.scores.iter() }
            .map(|&(_, score)| (distance(score), score))
            .collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut sum = 0.0;
        let reaches = |&(_, score): &(f64, f32)| {
            sum += weight(score) / total;
            sum >= mass
        };
        let last = { sorted.iter() }
            .position(reaches)
            .unwrap_or(sorted.len() - 1);
        let farthest = sorted[last].0;
        self.scores
            .retain(|&(_, score)| distance(score) <= farthest);
    }

    /// The tokens that are at least so likely, and the likeliest ones.
    fn keep_likelier_than(&mut self, least: f64) {
        let total: f64 = self.weights().sum();
        let scores = self.scores.iter().map(|&(_, score)| score);
        let largest = scores.fold(f32::NEG_INFINITY, f32::max);
        let is_kept = |score: f32| weight(score) / total >= least || score >= largest;
        self.scores.retain(|&(_, score)| is_kept(score));
    }

    /// The entropy of the distribution.
    fn entropy(&self) -> f64 {
        let total: f64 = self.weights().sum();
        self.weights().map(|of| part_of_entropy(of / total)).sum()
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

/// What a token of this probability adds to the entropy.
fn part_of_entropy(p: f64) -> f64 {
    if p > 0.0 { -p * p.ln() } else { 0.0 }
}

/// From the likeliest on; of those that are as likely, the first comes first.
fn falling(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}
