//! Settings for sampling, and the tokens that they leave to sample from.

use candle_core::{Result, bail};

use crate::error::{Error, setters};

/// Settings for sampling the next token. They are applied in the order of transformers' `generate`, which is also the order
/// of the fields. Pass them to [`Sampler::new`](crate::generate::Sampler::new).
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Sampling {
    /// The divisor of logits. 0 selects the most likely token and disables all other settings.
    pub temperature: f64,
    /// Samples among the most likely tokens, at most 100, whose share of the entropy sums to this.
    pub top_h: Option<f64>,
    /// The number of most likely tokens to sample from.
    pub top_k: Option<usize>,
    /// Samples among the most likely tokens whose probabilities sum to this.
    pub top_p: Option<f64>,
    /// Samples among tokens with at least this share of the largest probability.
    pub min_p: Option<f64>,
    /// Samples among tokens whose information is nearest to the entropy and whose probabilities sum to this.
    pub typical_p: Option<f64>,
    /// Samples among tokens with at least this probability.
    pub epsilon_cutoff: Option<f64>,
    /// Samples among tokens with at least this probability, or a smaller one if the entropy is large.
    pub eta_cutoff: Option<f64>,
    /// The random seed. The sampled token depends on the seed, the sequence's index in its batch and its length, and on
    /// nothing else. Without a seed, [`Sampler::new`](crate::generate::Sampler::new) draws one.
    pub seed: Option<u64>,
}

impl Sampling {
    /// Returns settings that select the most likely token.
    pub fn greedy() -> Self {
        Self::at(0.0)
    }

    /// Returns settings that sample among all tokens, at this temperature.
    pub fn at(temperature: f64) -> Self {
        Self {
            temperature,
            top_h: None,
            top_k: None,
            top_p: None,
            min_p: None,
            typical_p: None,
            epsilon_cutoff: None,
            eta_cutoff: None,
            seed: None,
        }
    }

    setters! {
        /// Sets the number of most likely tokens to sample from.
        with_top_k(k: usize) => top_k = Some(k);
        /// Sets the total probability of the tokens to sample from.
        with_top_p(p: f64) => top_p = Some(p);
        /// Sets the minimum probability, as a share of the largest one.
        with_min_p(p: f64) => min_p = Some(p);
        /// Sets the random seed.
        with_seed(seed: u64) => seed = Some(seed);
    }

    pub(super) fn validate(&self) -> crate::Result<()> {
        let within = |name: &str, found: f64, fits: bool, expected: &str| match fits {
            true => Ok(()),
            false => Err(Error::InvalidConfig(format!(
                "{name} is {found}; expected {expected}"
            ))),
        };
        let share = |name, p: Option<f64>| match p {
            Some(p) => within(name, p, (0.0..=1.0).contains(&p), "a number from 0 to 1"),
            None => Ok(()),
        };
        let t = self.temperature;
        let fits = t.is_finite() && t >= 0.0;
        within("temperature", t, fits, "a number from 0 on")?;
        within("top_k", 0.0, self.top_k != Some(0), "at least 1")?;
        let parts = [
            ("top_h", self.top_h),
            ("typical_p", self.typical_p),
            ("epsilon_cutoff", self.epsilon_cutoff),
            ("eta_cutoff", self.eta_cutoff),
        ];
        for (name, part) in parts {
            let part = part.unwrap_or(1.0);
            within(
                name,
                part,
                part > 0.0 && part <= 1.0,
                "a number above 0, up to 1",
            )?;
        }
        share("top_p", self.top_p)?;
        share("min_p", self.min_p)
    }
}

/// Tokens that may be sampled, and their scores: the difference between their logits and the largest, divided by the
/// temperature.
pub(super) struct Candidates {
    scores: Vec<(u32, f32)>,
}

/// The number of tokens that top-p sorts first.
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

    /// Keeps the `k` most likely tokens, and those as likely as the last of them.
    fn keep_top_k(&mut self, k: usize) {
        if k < self.scores.len() {
            let (_, &mut (_, last), _) = self.scores.select_nth_unstable_by(k - 1, falling);
            self.scores.retain(|&(_, score)| score >= last);
        }
    }

    /// Keeps the smallest set of most likely tokens whose probabilities sum to at least `p`, but at least one token.
    fn keep_top_p(&mut self, p: f64) {
        let total: f64 = self.weights().sum();
        let (mut sorted, mut before) = (0, 0.0);
        // Few tokens are almost always enough, and sorting all takes longer than everything else.
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

    /// Keeps the smallest set among the 100 most likely tokens whose entropy reaches this share of the total, but at least
    /// one.
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

    /// Keeps the smallest set of tokens whose information is nearest to the entropy and whose probabilities sum to `mass`.
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

    /// Keeps tokens with at least this probability, and the most likely ones.
    fn keep_likelier_than(&mut self, least: f64) {
        let total: f64 = self.weights().sum();
        let scores = self.scores.iter().map(|&(_, score)| score);
        let largest = scores.fold(f32::NEG_INFINITY, f32::max);
        let is_kept = |score: f32| weight(score) / total >= least || score >= largest;
        self.scores.retain(|&(_, score)| is_kept(score));
    }

    /// Returns the distribution's entropy.
    fn entropy(&self) -> f64 {
        let total: f64 = self.weights().sum();
        self.weights().map(|of| part_of_entropy(of / total)).sum()
    }

    /// Returns the token at this point of the cumulative distribution, from 0 to 1.
    pub fn drawn(&self, share: f64) -> Result<u32> {
        let mut rest = share * self.weights().sum::<f64>();
        for &(token, score) in &self.scores {
            rest -= weight(score);
            if rest < 0.0 {
                return Ok(token);
            }
        }
        // Rounding may leave a small remainder after the last.
        let likely = self.scores.iter().rfind(|&&(_, score)| weight(score) > 0.0);
        match likely {
            Some(&(token, _)) => Ok(token),
            None => bail!("no token can be selected: all logits are -inf"),
        }
    }

    fn weights(&self) -> impl Iterator<Item = f64> {
        self.scores.iter().map(|&(_, score)| weight(score))
    }
}

/// Returns a score's unnormalized probability.
fn weight(score: f32) -> f64 {
    f64::from(score.exp())
}

/// Returns a probability's term in the entropy.
fn part_of_entropy(p: f64) -> f64 {
    if p > 0.0 { -p * p.ln() } else { 0.0 }
}

/// Sorts in descending order; equally likely tokens keep their order.
fn falling(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Returns the largest value; compares several at a time, so that the compiler can use vectors.
pub(super) fn largest(numbers: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (whole, rest) = numbers.as_chunks::<16>();
    for chunk in whole {
        for (lane, &number) in lanes.iter_mut().zip(chunk) {
            *lane = if number > *lane { number } else { *lane };
        }
    }
    lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max)
}
