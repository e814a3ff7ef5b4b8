//! Selects the next token: the most likely one, or a random one.

use std::hash::{BuildHasher, RandomState};

use candle_core::{DType, Device, Result, Storage, Tensor, bail};
use chacha20::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::sampling::{Candidates, Sampling, largest};
use super::{Choose, Sequence};
use crate::error::getters;

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
