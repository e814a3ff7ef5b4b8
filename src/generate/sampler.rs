//! The likeliest next token, or one at random.

use candle_core::{DType, Device, Result, Storage, Tensor, bail};
use chacha20::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::draw::Candidates;
use super::{Choose, Sequence};
use crate::checkpoint::config_json::ConfigJson;
use crate::config::{getters, setters};
use crate::error::Error;

/// How the next token is chosen. What is set is applied in the order of transformers' processors: repetition penalty,
/// temperature, top-k, top-p, min-p.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Sampling {
    /// What logits are divided by. With 0 the likeliest token is chosen, and only the repetition penalty has a meaning.
    pub temperature: f64,
    /// The number of likeliest tokens to choose from.
    pub top_k: Option<usize>,
    /// Chooses from the likeliest tokens whose probabilities add up to this.
    pub top_p: Option<f64>,
    /// Chooses from tokens that are at least so many times as likely as the likeliest.
    pub min_p: Option<f64>,
    /// What the logits of tokens that occur are divided by, or multiplied with if they are below 0.
    pub repetition_penalty: f64,
    /// The seed of chance. What is drawn depends on it, on the sequence's number in its batch and on its length, and on nothing
    /// else.
    pub seed: u64,
}

impl Sampling {
    /// The likeliest token.
    pub fn greedy() -> Self {
        Self::at(0.0)
    }

    /// From all tokens, at this temperature.
    pub fn at(temperature: f64) -> Self {
        Self {
            temperature,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }

    setters! {
        /// Sets the number of likeliest tokens to choose from.
        with_top_k(k: usize) => top_k = Some(k);
        /// Sets the probability that the tokens to choose from add up to.
        with_top_p(p: f64) => top_p = Some(p);
        /// Sets the least probability, as a share of that of the likeliest token.
        with_min_p(p: f64) => min_p = Some(p);
        /// Sets the penalty for tokens that occur.
        with_repetition_penalty(penalty: f64) => repetition_penalty = penalty;
        /// Sets the seed of chance.
        with_seed(seed: u64) => seed = seed;
    }

    /// What a `generation_config.json` recommends, with transformers' defaults.
    pub(super) fn read(json: &ConfigJson) -> crate::Result<Self> {
        let top_k = json.switchable_size("top_k", 50)?;
        Ok(Self {
            temperature: json.number(&["temperature"], 1.0)?,
            top_k: top_k.filter(|&k| k > 0),
            top_p: json.optional_number(&["top_p"])?,
            min_p: json.optional_number(&["min_p"])?,
            repetition_penalty: json.number(&["repetition_penalty"], 1.0)?,
            seed: 0,
        })
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
        let (t, penalty) = (self.temperature, self.repetition_penalty);
        within(
            "temperature",
            t,
            t.is_finite() && t >= 0.0,
            "a number from 0 on",
        )?;
        let fits = penalty.is_finite() && penalty > 0.0;
        within("repetition_penalty", penalty, fits, "a number above 0")?;
        within("top_k", 0.0, self.top_k != Some(0), "at least 1")?;
        share("top_p", self.top_p)?;
        share("min_p", self.min_p)
    }
}

/// Chooses tokens as a [`Sampling`] says.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    sampling: Sampling,
}

impl Sampler {
    /// Chooses the likeliest token: the first of several.
    pub fn greedy() -> Self {
        Self {
            sampling: Sampling::greedy(),
        }
    }

    /// Chooses as `sampling` says.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn new(sampling: Sampling) -> crate::Result<Self> {
        sampling.validate()?;
        Ok(Self { sampling })
    }

    getters! {
        /// How tokens are chosen.
        sampling(&self) -> &Sampling => &self.sampling;
    }

    fn next(&self, logits: &[f32], sequence: &Sequence) -> Result<u32> {
        if let Some(at) = logits.iter().position(|x| x.is_nan()) {
            bail!(
                "the logit of token {at} is not a number; check the weights for values that are not finite"
            );
        }
        let (sampling, penalty) = (self.sampling, self.sampling.repetition_penalty as f32);
        let is_greedy = sampling.temperature as f32 == 0.0;
        if is_greedy && penalty == 1.0 {
            return likeliest(logits);
        }
        let mut logits = logits.to_vec();
        penalize(&mut logits, sequence.tokens, penalty);
        if is_greedy {
            return likeliest(&logits);
        }
        Candidates::new(&logits, &sampling).drawn(chance(sampling.seed, sequence))
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
            bail!("logits that were moved to the CPU are elsewhere");
        };
        let rows = &storage.as_slice::<f32>()?[layout.start_offset()..];
        let rows = rows.chunks_exact(n_tokens.max(1)).zip(sequences);
        rows.map(|(row, sequence)| self.next(row, sequence))
            .collect()
    }
}

/// A number from 0 to 1, the same for the same place of the same sequence.
fn chance(seed: u64, sequence: &Sequence) -> f64 {
    let mut numbers = ChaCha12Rng::seed_from_u64(seed);
    numbers.set_stream(sequence.index as u64);
    // In words of 32 bits.
    numbers.set_word_pos(2 * sequence.tokens.len() as u128);
    numbers.random()
}

/// The first of the largest.
fn likeliest(logits: &[f32]) -> Result<u32> {
    let largest = largest(logits);
    match logits.iter().position(|&logit| logit == largest) {
        Some(at) if largest > f32::NEG_INFINITY => Ok(at as u32),
        _ => bail!("no token can be chosen: all logits are -inf"),
    }
}

/// The largest; of several at a time, which the compiler makes a vector of.
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

fn penalize(logits: &mut [f32], tokens: &[u32], penalty: f32) {
    if penalty == 1.0 {
        return;
    }
    let mut occurring = tokens.to_vec();
    occurring.sort_unstable();
    occurring.dedup();
    for token in occurring {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = if *logit < 0.0 {
                *logit * penalty
            } else {
                *logit / penalty
            };
        }
    }
}
