//! Whisper's fallback: a window is decoded again, at the next temperature, while its tokens repeat themselves too much or are too
//! improbable. It follows transformers' `WhisperGenerationMixin.generate_with_fallback`.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/whisper/generation_whisper.py>

use candle_core::{DType, Device, Tensor};
use miniz_oxide::deflate::core::{
    CompressionStrategy, CompressorOxide, TDEFLFlush, compress_to_output,
    create_comp_flags_from_zip_params,
};

use super::options::DecodingOptions;
use crate::checkpoint::config_json::ConfigJson;
use crate::error::{Error, Result};
use crate::generate::{
    BeamOptions, Choose, GenerationOptions, Generator, Sampler, Sampling, Sequence,
};
use crate::model::Encoded;

/// The settings for attempts at a window.
#[derive(Clone, Debug)]
pub(super) struct Fallback {
    temperatures: Vec<f64>,
    compression_ratio: Option<f64>,
    log_probability: Option<f64>,
    /// The threshold for silence, and the token that means it.
    silence: Option<(f64, u32)>,
    /// The size of the vocabulary.
    n_tokens: usize,
}

impl Fallback {
    /// Returns the caller's settings, and those of `generation_config.json` for others.
    ///
    /// # Errors
    /// If a key has the wrong type, there is no temperature or a negative one, or silence is to be detected without a threshold
    /// for log probabilities or without the token for it.
    pub fn new(json: &ConfigJson, options: &DecodingOptions, n_tokens: usize) -> Result<Self> {
        let temperatures = options.temperatures.clone().unwrap_or_else(|| vec![0.0]);
        let fits = |t: &f64| t.is_finite() && *t >= 0.0;
        if temperatures.is_empty() || !temperatures.iter().all(fits) {
            let reason = format!("found {temperatures:?}, expected one or more numbers from 0 on");
            return Err(Error::input("temperatures", reason));
        }
        let number = |given: Option<f64>, key: &str| match given {
            Some(given) => Ok(Some(given)),
            None => json.optional_number(&[key]),
        };
        let ratio = options.compression_ratio_threshold;
        let log_probability = number(options.logprob_threshold, "logprob_threshold")?;
        let threshold = number(options.no_speech_threshold, "no_speech_threshold")?;
        if threshold.is_some() && log_probability.is_none() {
            let reason = "it needs a logprob_threshold too, for which OpenAI takes -1";
            return Err(json.error(&["no_speech_threshold"], reason));
        }
        let no_timestamps = json.parsed::<u32>("no_timestamps_token_id")?;
        // The token before "no timestamps", as in transformers.
        let token = no_timestamps.and_then(|id| id.checked_sub(1));
        if threshold.is_some() && token.is_none() {
            let reason = "missing; no_speech_threshold needs it";
            return Err(json.error(&["no_timestamps_token_id"], reason));
        }
        Ok(Self {
            temperatures,
            compression_ratio: number(ratio, "compression_ratio_threshold")?,
            log_probability,
            silence: threshold.zip(token),
            n_tokens,
        })
    }

    /// Decodes a window until an attempt is accepted or no temperature is left. Returns its new tokens, or `None` for silence, and
    /// its temperature. The window's own tokens begin at `start` in the prompt. `has_sampled` is set after the first attempt in the
    /// clip that sampled, from which on transformers searches with one beam.
    ///
    /// # Errors
    /// If the model fails.
    pub fn decode(
        &self,
        generator: &Generator,
        encoded: &Encoded,
        (prompt, start): (&[u32], usize),
        has_sampled: &mut bool,
    ) -> Result<(Option<Vec<u32>>, f64)> {
        let with = |options| Generator::new(generator.model().clone(), options);
        let alone = with(GenerationOptions {
            beams: BeamOptions::default(),
            ..generator.options().clone()
        })?;
        let mut silence = false;
        if let Some((threshold, token)) = self.silence {
            let plain = with(GenerationOptions {
                max_new_tokens: Some(1),
                ..GenerationOptions::default()
            })?;
            let mut recorded = Vec::new();
            let given = [token];
            let choose = Recorded::of(Choice::Given(&given), None, &mut recorded);
            all(&plain, encoded, &prompt[..=start], choose)?;
            silence = recorded.iter().sum::<f64>().exp() > threshold;
        }
        let mut last = Err(Error::input("temperatures", "there is none"));
        for (seed, &temperature) in (0..).zip(&self.temperatures) {
            *has_sampled |= temperature > 0.0;
            let generator = if *has_sampled { &alone } else { generator };
            let searches = generator.options().beams.beams > 1;
            let sampling = Sampling {
                temperature,
                seed: Some(seed),
                ..generator.options().sampling
            };
            let (sampler, top_k) = match temperature > 0.0 {
                true => (Sampler::new(sampling)?, sampling.top_k),
                false => (Sampler::greedy(), None),
            };
            let (mut tokens, mut recorded) = (Vec::new(), Vec::new());
            if searches || self.log_probability.is_none() {
                tokens = all(generator, encoded, prompt, sampler)?;
            }
            if self.log_probability.is_some() {
                // The beams' scores are not those of the tokens among the allowed ones.
                let choice = match searches {
                    true => Choice::Given(&tokens),
                    false => Choice::By(sampler),
                };
                let choose = Recorded::of(choice, top_k, &mut recorded);
                tokens = all(&alone, encoded, prompt, choose)?;
            }
            let mean = recorded.iter().sum::<f64>() / recorded.len() as f64;
            let is_improbable = self.log_probability.is_some_and(|least| mean < least);
            let ratio = |most| compression_ratio(&tokens, self.n_tokens) > most;
            let is_repeated = self.compression_ratio.is_some_and(ratio);
            let is_silent = is_improbable && silence;
            last = Ok(((!is_silent).then_some(tokens), temperature));
            if is_silent || !(is_improbable || is_repeated) {
                break;
            }
        }
        last
    }
}

/// Generates all new tokens.
fn all(
    generator: &Generator,
    encoded: &Encoded,
    prompt: &[u32],
    choose: impl Choose,
) -> Result<Vec<u32>> {
    let prompts = [prompt.to_vec()];
    let mut generation = generator.start_with_encoder(encoded.clone(), &prompts, choose)?;
    for step in &mut generation {
        step?;
    }
    Ok(generation.into_tokens().swap_remove(0))
}

/// Selects tokens, and records their log probabilities among those that the rules allow.
struct Recorded<'r> {
    choice: Choice<'r>,
    /// The number of most likely tokens that are allowed.
    top_k: Option<usize>,
    recorded: &'r mut Vec<f64>,
}

/// How tokens are selected.
enum Choice<'r> {
    By(Sampler),
    Given(&'r [u32]),
}

impl<'r> Recorded<'r> {
    fn of(choice: Choice<'r>, top_k: Option<usize>, recorded: &'r mut Vec<f64>) -> Self {
        Self {
            choice,
            top_k,
            recorded,
        }
    }
}

impl Choose for Recorded<'_> {
    fn choose(&mut self, logits: &Tensor, sequences: &[Sequence]) -> candle_core::Result<Vec<u32>> {
        let tokens = match &mut self.choice {
            Choice::By(sampler) => sampler.choose(logits, sequences)?,
            Choice::Given(tokens) => match tokens.get(self.recorded.len()) {
                Some(&token) => vec![token],
                None => candle_core::bail!("the sequence goes on after its tokens"),
            },
        };
        let rows = logits.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        for (row, &token) in rows.to_vec2::<f32>()?.iter().zip(&tokens) {
            (self.recorded).push(log_probability(row, token, self.top_k));
        }
        Ok(tokens)
    }

    fn draws(&self) -> bool {
        matches!(&self.choice, Choice::By(sampler) if sampler.draws())
    }
}

/// Returns a token's log probability among the `top_k` most likely ones, or all.
fn log_probability(logits: &[f32], token: u32, top_k: Option<usize>) -> f64 {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let least = top_k.and_then(|k| sorted.get(k.saturating_sub(1)));
    let (largest, least) = (sorted[0], least.copied().unwrap_or(f32::NEG_INFINITY));
    let kept = sorted.iter().take_while(|&&x| x >= least);
    let sum: f64 = kept.map(|x| f64::from(x - largest).exp()).sum();
    f64::from(logits[token as usize] - largest) - sum.ln()
}

/// Returns the tokens' size in bytes, divided by their size when they are compressed. Above 1 it is zlib's ratio within 5 %;
/// tokens that are hardly compressible are stored here where zlib may save some bytes of the overhead.
fn compression_ratio(tokens: &[u32], n_tokens: usize) -> f64 {
    let width = ((n_tokens as f64).log2() / 8.0) as usize + 1;
    let bytes = |token: &u32| token.to_le_bytes().into_iter().take(width);
    let bytes: Vec<u8> = tokens.iter().flat_map(bytes).collect();
    let compressed = |strategy: CompressionStrategy| {
        let flags = create_comp_flags_from_zip_params(6, 15, strategy as i32);
        let (mut encoder, mut size) = (CompressorOxide::new(flags), 0);
        compress_to_output(&mut encoder, &bytes, TDEFLFlush::Finish, |part| {
            size += part.len();
            true
        });
        size
    };
    // Like zlib, whichever codes are shorter: those for these bytes, with their table, or the fixed ones.
    let [own, fixed] = [CompressionStrategy::Default, CompressionStrategy::Fixed].map(compressed);
    bytes.len() as f64 / own.min(fixed) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_ratios_are_those_of_python_s_zlib() {
        let row = |n: u32, k: u32| -> Vec<u32> { (0..n).map(|i| i * i % k).collect() };
        for (tokens, n_tokens, expected) in [
            (row(30, 7), 431, 2.727272727272727),
            (row(38, 400), 431, 0.9382716049382716),
            (row(200, 50), 431, 4.651162790697675),
            (row(448, 5000), 51865, 1.144316730523627),
            (row(448, 3), 51865, 42.666666666666664),
            (row(100, 51865), 51865, 0.9803921568627451),
        ] {
            let found = compression_ratio(&tokens, n_tokens);
            match expected > 1.0 {
                true => assert!((found / expected - 1.0).abs() < 0.05, "{found} {expected}"),
                false => assert!((0.85..=1.0).contains(&found), "{found} {expected}"),
            }
        }
    }
}
