//! Selects the next token: the most likely one, or a random one.

use std::hash::{BuildHasher, RandomState};

use candle_core::{DType, Device, Result, Storage, Tensor, bail};
use chacha20::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::draw::Candidates;
use super::{Choose, Sequence};
use crate::error::Error;
use crate::error::{getters, setters};

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

    fn validate(&self) -> crate::Result<()> {
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

/// Selects tokens by [`Sampling`] settings. Pass it to [`Generator::start`](crate::generate::Generator::start).
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    sampling: Sampling,
}

impl Sampler {
    /// Makes a sampler that selects the most likely token, the first one in case of ties.
    pub fn greedy() -> Self {
        Self {
            sampling: Sampling::greedy(),
        }
    }

    /// Makes a sampler with these settings. Without a seed, it draws one below 2³², which [`Self::sampling`] has: with that
    /// seed, another sampler selects the same tokens.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn new(mut sampling: Sampling) -> crate::Result<Self> {
        sampling.validate()?;
        let made = Self { sampling };
        if made.draws() {
            sampling.seed.get_or_insert_with(drawn_seed);
        }
        Ok(Self { sampling })
    }

    getters! {
        /// Returns the settings, with the seed that is used.
        sampling(&self) -> &Sampling => &self.sampling;
    }

    fn next(&self, logits: &[f32], sequence: &Sequence) -> Result<u32> {
        if let Some(at) = logits.iter().position(|x| x.is_nan()) {
            return Err(not_a_number(at));
        }
        if !self.draws() {
            return likeliest(logits);
        }
        let sampling = self.sampling;
        Candidates::new(logits, &sampling).drawn(chance(sampling.seed.unwrap_or(0), sequence))
    }
}

impl Choose for Sampler {
    fn choose(&mut self, logits: &Tensor, sequences: &[Sequence]) -> Result<Vec<u32>> {
        let logits = logits
            .to_dtype(DType::F32)?
            .to_device(&Device::Cpu)?
            .contiguous()?;
        let (_, n_tokens) = logits.dims2()?;
        let (storage, layout) = logits.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            bail!("the logits are not on the CPU after moving them there");
        };
        let rows = &storage.as_slice::<f32>()?[layout.start_offset()..];
        let rows = rows.chunks_exact(n_tokens.max(1)).zip(sequences);
        rows.map(|(row, sequence)| self.next(row, sequence))
            .collect()
    }

    fn draws(&self) -> bool {
        self.sampling.temperature as f32 != 0.0
    }
}

/// Returns the error for a NaN logit.
pub(super) fn not_a_number(token: usize) -> candle_core::Error {
    candle_core::Error::msg(format!(
        "the logit of token {token} is NaN; check the weights for values that are not finite, and \
         the settings that raise logits (exponential_decay_length_penalty, sequence_bias)"
    ))
}

/// Returns a seed by the random keys that the standard library gives its hash maps.
fn drawn_seed() -> u64 {
    let drawn = RandomState::new().hash_one("seed");
    drawn & u64::from(u32::MAX)
}

/// Returns a random number from 0 to 1, which only depends on the seed and the sequence's index and length.
fn chance(seed: u64, sequence: &Sequence) -> f64 {
    let mut numbers = ChaCha12Rng::seed_from_u64(seed);
    numbers.set_stream(sequence.index as u64);
    // The position counts 32-bit words.
    numbers.set_word_pos(2 * sequence.tokens.len() as u128);
    numbers.random()
}

/// Returns the first token with the largest logit.
fn likeliest(logits: &[f32]) -> Result<u32> {
    let largest = largest(logits);
    match logits.iter().position(|&logit| logit == largest) {
        Some(at) if largest > f32::NEG_INFINITY => Ok(at as u32),
        _ => bail!("no token can be selected: all logits are -inf"),
    }
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
