//! Writes on where a prompt ends.

use anyhow::{Result, ensure};

use crate::{model::Gpt, random::Random};

/// How bytes are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Divides the logits; 0 selects the most likely byte.
    pub temperature: f64,
    pub seed: u64,
}

/// Samples `n` bytes after `prompt`, and passes each to `show`. Each step computes the new byte alone; the cache keeps the
/// others. When the context is full, its later half is read again from position 0.
pub fn sample(
    model: &Gpt,
    prompt: &[u8],
    n: usize,
    sampling: Sampling,
    mut show: impl FnMut(u8),
) -> Result<()> {
    ensure!(
        !prompt.is_empty(),
        "the prompt is empty; --sample needs at least a letter"
    );
    ensure!(
        sampling.temperature >= 0.0,
        "the temperature is {}, expected 0 or above",
        sampling.temperature
    );
    let context = model.context();
    let mut random = Random::seeded(sampling.seed);
    let mut text = prompt.to_vec();
    let mut cache = model.new_cache();
    let mut n_unseen = text.len().min(context);
    for _ in 0..n {
        if cache.seen() + n_unseen > context {
            cache.reset();
            n_unseen = (context / 2).max(1);
        }
        let logits = model.next(&text[text.len() - n_unseen..], &mut cache)?;
        let byte = choose(&logits, sampling.temperature, random.unit());
        text.push(byte);
        show(byte);
        n_unseen = 1;
    }
    Ok(())
}

/// The byte at `at` of `0..1` when the bytes divide it by their probabilities.
fn choose(logits: &[f32], temperature: f64, at: f64) -> u8 {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let weight = |&logit: &f32| match logit == largest {
        true => 1.0, // also where the quotient would be 0 / 0
        false => (((logit - largest) as f64) / temperature).exp(),
    };
    let weights: Vec<f64> = logits.iter().map(weight).collect();
    let mut left = at * weights.iter().sum::<f64>();
    for (byte, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return byte as u8;
        }
    }
    // Rounding left nothing: the last that has any probability.
    weights
        .iter()
        .rposition(|&weight| weight > 0.0)
        .unwrap_or(0) as u8
}
