//! Changes to the next token's logits, in the order of transformers' logits processors.

use std::{borrow::Cow, collections::BTreeMap};

use super::{GenerationOptions, TimestampRules, lengths::Lengths};
use crate::error::{Error, Result};

/// A change to logits: one of transformers' logits processors.
#[derive(Clone, Debug)]
pub(super) enum LogitsProcessor {
    /// `sequence_bias` and `bad_words_ids`: adds to the last token's logit after the others.
    Bias(Vec<(Vec<u32>, f32)>),
    /// `repetition_penalty`, for tokens that occur, and `encoder_repetition_penalty`, for those that do not occur in the
    /// encoder's input.
    Penalty(Context, f32),
    /// `no_repeat_ngram_size` and `encoder_no_repeat_ngram_size`.
    NoRepeatNgram(Context, usize),
    /// `suppress_tokens`, and up to a length `min_length` and `begin_suppress_tokens`.
    Suppress(Vec<u32>, When),
    /// `forced_bos_token_id` and `forced_eos_token_id`.
    Force(Vec<u32>, When),
    /// `remove_invalid_values`.
    RemoveInvalid,
    /// `exponential_decay_length_penalty`: from a length on, increases these tokens' logits.
    EndSooner {
        tokens: Vec<u32>,
        from: usize,
        factor: f64,
    },
    /// The rules for timestamps, after prompts of this length.
    Timestamps(TimestampRules, usize),
    /// `renormalize_logits`.
    Normalize,
}

/// The tokens that a processor depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Context {
    /// The sequence so far.
    Sequence,
    /// The encoder's input; for a model without an encoder, the prompt.
    Encoder,
}

/// The sequence lengths at which a processor has an effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum When {
    Always,
    Below(usize),
    At(usize),
}

/// A sequence whose next token is selected.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequenceRow<'t> {
    /// Its prompt with padding before it, and the tokens generated so far.
    pub tokens: &'t [u32],
    pub n_padding: usize,
    /// The encoder's input tokens.
    pub encoder: &'t [u32],
}

impl LogitsProcessor {
    /// Returns the processors that transformers would apply, in its order.
    pub fn list(options: &GenerationOptions, lengths: &Lengths) -> Result<Vec<Self>> {
        let ends = || options.stop_tokens.clone();
        let banned = |words: &[Vec<u32>]| -> Vec<_> {
            let ends_text =
                |word: &Vec<u32>| matches!(word[..], [token] if ends().contains(&token));
            let words = words.iter().filter(|word| !ends_text(word));
            words
                .map(|word| (word.clone(), f32::NEG_INFINITY))
                .collect()
        };
        let penalty = |context, penalty: f64| {
            (penalty != 1.0).then_some(Self::Penalty(context, penalty as f32))
        };
        let no_repeat = |context, n: usize| (n > 0).then_some(Self::NoRepeatNgram(context, n));
        let bias = |biases: Vec<_>| (!biases.is_empty()).then(|| Self::Bias(once_each(biases)));
        let suppress = |tokens: Vec<u32>, when| {
            let is_set = !tokens.is_empty() && when != When::Below(0);
            is_set.then_some(Self::Suppress(tokens, when))
        };
        let first = options.forced_first.map(|token| vec![token]);
        let last = Some(options.forced_last.clone()).filter(|tokens| !tokens.is_empty());
        let force = |tokens: Option<Vec<u32>>, at| Some(Self::Force(tokens?, When::At(at)));
        // If the first token is forced, the next one counts as the first that is selected.
        let begins = lengths.prompt + usize::from(lengths.prompt == 1 && first.is_some());
        let sooner = options.length_decay.map(|(from, factor)| Self::EndSooner {
            tokens: ends(),
            from: lengths.prompt + from,
            factor,
        });
        if sooner.is_some() && options.stop_tokens.is_empty() {
            let reason = "exponential_decay_length_penalty is set, but no eos_token_id: set one, or remove it";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        let all = [
            bias(options.sequence_bias.clone()),
            penalty(Context::Encoder, 1.0 / options.encoder_repetition_penalty),
            penalty(Context::Sequence, options.repetition_penalty),
            no_repeat(Context::Sequence, options.no_repeat_ngram),
            no_repeat(Context::Encoder, options.encoder_no_repeat_ngram),
            bias(banned(&options.bad_words)),
            suppress(ends(), When::Below(lengths.min)),
            force(first, 1),
            force(last, lengths.max.saturating_sub(1)),
            options.remove_invalid.then_some(Self::RemoveInvalid),
            sooner,
            suppress(options.suppressed.clone(), When::Always),
            suppress(options.suppressed_first.clone(), When::At(begins)),
            (options.timestamps).map(|rules| Self::Timestamps(rules, lengths.prompt)),
            options.renormalize.then_some(Self::Normalize),
        ];
        Ok(all.into_iter().flatten().collect())
    }

    /// Checks for tokens outside the vocabulary, which transformers refuses.
    pub fn check(&self, n_tokens: usize) -> Result<()> {
        let beyond = |token: &&u32| **token as usize >= n_tokens;
        let (name, token) = match self {
            Self::Bias(biases) => {
                let mut tokens = biases.iter().flat_map(|(tokens, _)| tokens);
                ("sequence_bias or bad_words_ids", tokens.find(beyond))
            }
            Self::Force(tokens, _) => {
                let name = "forced_bos_token_id or forced_eos_token_id";
                (name, tokens.iter().find(beyond))
            }
            _ => return Ok(()),
        };
        match token {
            None => Ok(()),
            Some(token) => Err(Error::InvalidConfig(format!(
                "{name} names token {token}; the model has the tokens 0 to {}",
                n_tokens.saturating_sub(1)
            ))),
        }
    }

    /// Returns whether it may change the next logits at this sequence length, padding included.
    pub fn acts_at(&self, length: usize) -> bool {
        match self {
            Self::Suppress(_, when) | Self::Force(_, when) => when.is_at(length),
            Self::EndSooner { from, .. } => length > *from,
            _ => true,
        }
    }

    /// Changes the next token's logits for a sequence.
    pub fn apply(&self, row: &SequenceRow, logits: &mut [f32]) {
        match self {
            Self::Bias(biases) => add_biases(biases, row.tokens, logits),
            Self::Penalty(context, penalty) => penalize(row.of(*context), *penalty, logits),
            Self::NoRepeatNgram(context, n) => {
                let tokens = match context {
                    Context::Sequence => row.tokens,
                    Context::Encoder => row.encoder,
                };
                ban_ngrams(tokens, row.tokens, *n, logits);
            }
            Self::Suppress(tokens, _) => set(tokens, f32::NEG_INFINITY, logits),
            Self::Force(tokens, _) => {
                logits.fill(f32::NEG_INFINITY);
                set(tokens, 0.0, logits);
            }
            Self::RemoveInvalid => logits.iter_mut().for_each(|logit| *logit = valid(*logit)),
            Self::EndSooner {
                tokens,
                from,
                factor,
            } => {
                let n = (row.tokens.len() - from).min(i32::MAX as usize) as i32;
                let growth = (factor.powi(n) - 1.0) as f32;
                for &token in tokens {
                    if let Some(logit) = logits.get_mut(token as usize)
                        && logit.is_finite()
                    {
                        *logit += logit.abs() * growth;
                    }
                }
            }
            Self::Timestamps(rules, n_prompt) => rules.apply(&row.tokens[*n_prompt..], logits),
            Self::Normalize => log_softmax(logits),
        }
    }
}

impl When {
    fn is_at(self, length: usize) -> bool {
        match self {
            Self::Always => true,
            Self::Below(limit) => length < limit,
            Self::At(at) => length == at,
        }
    }
}

impl SequenceRow<'_> {
    /// Returns the tokens that occur, each once.
    fn of(&self, context: Context) -> Cow<'_, [u32]> {
        let mut tokens = match context {
            Context::Sequence => self.tokens[self.n_padding..].to_vec(),
            Context::Encoder => self.encoder.to_vec(),
        };
        tokens.sort_unstable();
        tokens.dedup();
        tokens.into()
    }
}

fn set(tokens: &[u32], to: f32, logits: &mut [f32]) {
    for &token in tokens {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = to;
        }
    }
}

fn penalize(occurring: Cow<[u32]>, penalty: f32, logits: &mut [f32]) {
    for &token in &*occurring {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = match *logit < 0.0 {
                true => *logit * penalty,
                false => *logit / penalty,
            };
        }
    }
}

/// Removes biases that a later one for the same tokens replaces.
fn once_each(biases: Vec<(Vec<u32>, f32)>) -> Vec<(Vec<u32>, f32)> {
    let all: BTreeMap<Vec<u32>, f32> = biases.into_iter().collect();
    all.into_iter().collect()
}

/// Adds the sum of a token's biases to its logit.
fn add_biases(biases: &[(Vec<u32>, f32)], tokens: &[u32], logits: &mut [f32]) {
    let last_bias = |(sequence, bias): &(Vec<u32>, f32)| {
        let (&last, before) = sequence.split_last()?;
        tokens.ends_with(before).then_some((last, *bias))
    };
    let mut added: Vec<(u32, f32)> = biases.iter().filter_map(last_bias).collect();
    added.sort_by_key(|&(token, _)| token);
    for of_token in added.chunk_by(|a, b| a.0 == b.0) {
        if let Some(logit) = logits.get_mut(of_token[0].0 as usize) {
            *logit += of_token.iter().map(|&(_, bias)| bias).sum::<f32>();
        }
    }
}

/// Bans each token that would complete an n-gram that occurs in `tokens`.
fn ban_ngrams(tokens: &[u32], so_far: &[u32], n: usize, logits: &mut [f32]) {
    let Some(from) = (so_far.len() + 1).checked_sub(n) else {
        return;
    };
    let end = &so_far[from..];
    for ngram in tokens.windows(n) {
        if let Some((&last, before)) = ngram.split_last()
            && before == end
        {
            set(&[last], f32::NEG_INFINITY, logits);
        }
    }
}

fn valid(logit: f32) -> f32 {
    match logit.is_nan() {
        true => 0.0,
        false => logit.clamp(f32::MIN, f32::MAX),
    }
}

/// Converts logits to log-probabilities.
pub(super) fn log_softmax(logits: &mut [f32]) {
    let largest = super::sampling::largest(logits);
    let sum: f64 = logits.iter().map(|&x| f64::from((x - largest).exp())).sum();
    let log_sum = sum.ln() as f32;
    for logit in logits {
        *logit = *logit - largest - log_sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ngram_is_banned_where_it_would_end() {
        let banned = |tokens: &[u32], n| {
            let mut logits = [0.0; 8];
            ban_ngrams(tokens, tokens, n, &mut logits);
            (0..8).filter(|&i| logits[i] < 0.0).collect::<Vec<_>>()
        };
        assert_eq!(banned(&[1, 2, 3, 1, 2], 3), [3]);
        assert_eq!(banned(&[1, 2, 3, 1, 2], 2), [3]);
        assert_eq!(banned(&[1, 2, 3], 1), [1, 2, 3]);
        assert!(banned(&[1, 2], 3).is_empty());
        assert_eq!(banned(&[4, 1, 1, 1], 2), [1]);
    }
}
