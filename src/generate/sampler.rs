//! The likeliest next token, or one at random.

use candle_core::{DType, Device, Result, Storage, Tensor, bail};
use chacha20::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::draw::Candidates;
use super::{Choose, Sequence};
use crate::config::{getters, setters};
use crate::error::Error;

/// How the next token is drawn. Settings are applied in the order of transformers' `generate`, which is that of the fields.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Sampling {
    /// What logits are divided by. With 0 the likeliest token is chosen, and nothing else has a meaning.
    pub temperature: f64,
    /// Chooses from the likeliest tokens, of 100, whose share of the entropy adds up to this.
    pub top_h: Option<f64>,
    /// The number of likeliest tokens to choose from.
    pub top_k: Option<usize>,
    /// Chooses from the likeliest tokens whose probabilities add up to this.
    pub top_p: Option<f64>,
    /// Chooses from tokens that are at least so many times as likely as the likeliest.
    pub min_p: Option<f64>,
    /// Chooses from the tokens whose information is nearest to the entropy and whose probabilities add up to this.
    pub typical_p: Option<f64>,
    /// Chooses from tokens that are at least as likely as this.
    pub epsilon_cutoff: Option<f64>,
    /// Chooses from tokens that are at least as likely as this, or less where the entropy is large.
    pub eta_cutoff: Option<f64>,
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
            top_h: None,
            top_k: None,
            top_p: None,
            min_p: None,
            typical_p: None,
            epsilon_cutoff: None,
            eta_cutoff: None,
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
        /// Sets the seed of chance.
        with_seed(seed: u64) => seed = seed;
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
            return Err(not_a_number(at));
        }
        if !self.draws() {
            return likeliest(logits);
        }
        let sampling = self.sampling;
        Candidates::new(logits, &sampling).drawn(chance(sampling.seed, sequence))
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

    fn draws(&self) -> bool {
        self.sampling.temperature as f32 != 0.0
    }
}

/// The error of a logit that is NaN.
pub(super) fn not_a_number(token: usize) -> candle_core::Error {
    candle_core::Error::msg(format!(
        "the logit of token {token} is not a number; check the weights for values that are not finite, and the settings that \
         raise logits (exponential_decay_length_penalty, sequence_bias)"
    ))
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
