//! Beam search: finds the most likely sequences by their summed log-probabilities.
//!
//! All scores are computed in f32 and in the order of transformers' `_beam_search`, so that the same sequences win.

use crate::error::{Error, Result};

/// Options for beam search. Pass them to [`GenerationOptions::with_beams`](crate::generate::GenerationOptions::with_beams).
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct BeamOptions {
    /// The number of beams for each prompt; 1 means no search.
    pub beams: usize,
    /// The exponent of the sequence's length by which its score is divided.
    pub length_penalty: f64,
    /// The condition that ends the search.
    pub early_stopping: EarlyStopping,
    /// The number of sequences returned for each prompt, best first.
    pub returned: usize,
}

/// The condition that ends a prompt's beam search, once it has as many finished sequences as beams.
/// Set it in [`BeamOptions::early_stopping`](crate::generate::BeamOptions::early_stopping).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// Always true.
    Always,
    /// The best running sequence, at its current length, is no better than the worst finished one.
    #[default]
    Likely,
    /// No running sequence can become better than the worst finished one.
    Never,
}

impl Default for BeamOptions {
    fn default() -> Self {
        Self {
            beams: 1,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::default(),
            returned: 1,
        }
    }
}

impl BeamOptions {
    pub(super) fn validate(&self) -> Result<()> {
        let refused = |reason: String| Err(Error::InvalidConfig(reason));
        let (beams, returned) = (self.beams, self.returned);
        match () {
            () if beams == 0 => refused("num_beams is 0; expected at least 1".to_string()),
            () if returned == 0 || returned > beams => refused(format!(
                "num_return_sequences is {returned}; expected 1 to {beams} of num_beams"
            )),
            () if !self.length_penalty.is_finite() => {
                refused(format!("length_penalty is {}", self.length_penalty))
            }
            () => Ok(()),
        }
    }
}

/// Added to a score that must not win.
const NEVER: f32 = -1e9;

/// Checks the scores of the next tokens.
///
/// From 1e9 on, f32 cannot represent the differences between sequences, nor [`NEVER`]. In transformers, the order in which
/// `torch.topk` lists equal values then decides.
///
/// # Errors
/// If a score is NaN or this large.
pub(super) fn check_scores(scores: &[f32]) -> candle_core::Result<()> {
    if let Some(token) = scores.iter().position(|score| score.is_nan()) {
        return Err(super::sampler::not_a_number(token));
    }
    match scores.iter().position(|&score| score >= -NEVER) {
        None => Ok(()),
        Some(token) => candle_core::bail!(
            "the score of token {token} is {:e}, so large that f32 cannot tell beams apart: \
             exponential_decay_length_penalty raises scores that far, especially with \
             remove_invalid_values, and so may sequence_bias; remove one of them, or set \
             num_beams to 1",
            scores[token]
        ),
    }
}

/// A sequence, with the padding before its prompt, and its score.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Beam {
    pub tokens: Vec<u32>,
    pub score: f32,
}

/// The beams for one prompt.
#[derive(Clone, Debug)]
pub(super) struct Beams {
    options: BeamOptions,
    n_prompt: usize,
    max_length: usize,
    pub running: Vec<Beam>,
    /// Finished sequences, as many as beams; an empty place has `None` beside its score.
    ended: Vec<(Option<Vec<u32>>, f32)>,
    can_improve: bool,
    /// All candidates of the last step have ended.
    pub is_stuck: bool,
}

/// A running sequence plus one token.
struct Candidate {
    parent: usize,
    score: f32,
    ends: bool,
}

impl Beams {
    pub fn new(options: BeamOptions, prompt: &[u32], max_length: usize) -> Self {
        // All other beams would find the same tokens.
        let score = |i| if i == 0 { 0.0 } else { NEVER };
        let beam = |i| Beam {
            tokens: prompt.to_vec(),
            score: score(i),
        };
        Self {
            options,
            n_prompt: prompt.len(),
            max_length,
            running: (0..options.beams).map(beam).collect(),
            ended: vec![(None, NEVER); options.beams],
            can_improve: true,
            is_stuck: false,
        }
    }

    /// Returns whether no running sequence can be returned any more.
    pub fn is_done(&self) -> bool {
        let is_full = self.ended.iter().all(|(tokens, _)| tokens.is_some());
        !self.can_improve || (is_full && self.options.early_stopping == EarlyStopping::Always)
    }

    /// Extends sequences by one token. `log_probabilities` are those of the next token for each running sequence,
    /// concatenated; `ends` tells whether a sequence has ended. Returns the index of the sequence that each new one extends.
    pub fn step(
        &mut self,
        log_probabilities: &[f32],
        n_stop_tokens: usize,
        ends: impl Fn(&[u32]) -> bool,
    ) -> Vec<usize> {
        let n = self.options.beams;
        let n_tokens = log_probabilities.len() / n;
        let kept = (1 + n_stop_tokens).max(2) * n;
        let scored = log_probabilities.iter().enumerate().map(|(at, p)| {
            let of = &self.running[at / n_tokens];
            (p + of.score, at)
        });
        let extended = |(score, at): (f32, usize)| {
            let (parent, token) = (at / n_tokens, (at % n_tokens) as u32);
            let mut tokens = self.running[parent].tokens.clone();
            tokens.push(token);
            let ends = ends(&tokens);
            let candidate = Candidate {
                parent,
                score,
                ends,
            };
            (candidate, tokens)
        };
        let best = largest(kept, scored).into_iter().map(extended);
        let (candidates, mut sequences): (Vec<Candidate>, Vec<Vec<u32>>) = best.unzip();
        let length = self.running[0].tokens.len() + 1;
        self.keep_ended(&candidates, &sequences, length);
        self.is_stuck = candidates.iter().all(|candidate| candidate.ends);

        let going_on = candidates.iter().enumerate().map(|(at, candidate)| {
            let penalty = if candidate.ends { NEVER } else { 0.0 };
            (candidate.score + penalty, at)
        });
        let going_on = largest(n, going_on);
        let parents = going_on
            .iter()
            .map(|&(_, at)| candidates[at].parent)
            .collect();
        let beam = |&(score, at): &(f32, usize)| Beam {
            tokens: std::mem::take(&mut sequences[at]),
            score,
        };
        self.running = going_on.iter().map(beam).collect();
        self.can_improve &= self.improvement_is_possible(length);
        parents
    }

    /// Replaces finished sequences by better ones among the best candidates.
    fn keep_ended(&mut self, candidates: &[Candidate], sequences: &[Vec<u32>], length: usize) {
        let n = self.options.beams;
        let by_length = self.by_length(length);
        let is_done = self.is_done();
        let scores = candidates.iter().enumerate().map(|(at, candidate)| {
            let mut score = candidate.score / by_length;
            if is_done {
                score += NEVER;
            }
            if !(candidate.ends && at < n) {
                score += NEVER;
            }
            score
        });
        let before = self.ended.iter().map(|&(_, score)| score);
        let all = before
            .chain(scores)
            .enumerate()
            .map(|(at, score)| (score, at));
        let kept = largest(n, all).into_iter().map(|(score, at)| {
            let tokens = match at.checked_sub(n) {
                None => self.ended[at].0.clone(),
                Some(new) => {
                    let has_ended = candidates[new].ends && new < n;
                    has_ended.then(|| sequences[new].clone())
                }
            };
            (tokens, score)
        });
        self.ended = kept.collect();
    }

    /// Returns whether a running sequence may still become better than a finished one.
    fn improvement_is_possible(&self, length: usize) -> bool {
        let penalty = self.options.length_penalty;
        let at_length = match self.options.early_stopping {
            EarlyStopping::Never if penalty > 0.0 => self.max_length,
            _ => length,
        };
        let best = self.running[0].score / self.by_length(at_length);
        let worst = self.ended.iter().map(|&(_, score)| score);
        let worst = worst.fold(f32::INFINITY, f32::min);
        let of_place = |(tokens, _): &(Option<Vec<u32>>, f32)| match tokens {
            Some(_) => worst,
            None => NEVER,
        };
        self.ended.iter().any(|ended| best > of_place(ended))
    }

    /// Returns the divisor of a score for this sequence length.
    fn by_length(&self, length: usize) -> f32 {
        let new = (length - self.n_prompt) as f64;
        new.powf(self.options.length_penalty) as f32
    }

    /// Returns the result, best first: finished sequences, or running ones if none has finished.
    pub fn best(&self) -> Vec<Beam> {
        let returned = self.ended[..self.options.returned].iter();
        let best = returned
            .zip(&self.running)
            .map(|((tokens, score), running)| {
                let ended = tokens.as_ref().map(|tokens| Beam {
                    tokens: tokens.clone(),
                    score: *score,
                });
                ended.unwrap_or_else(|| running.clone())
            });
        best.collect()
    }
}

/// Returns the `n` largest, in descending order; equal ones keep their order.
fn largest(n: usize, scored: impl Iterator<Item = (f32, usize)>) -> Vec<(f32, usize)> {
    let mut best: Vec<(f32, usize)> = Vec::with_capacity(n + 1);
    for (score, at) in scored {
        if best.len() == n && best.last().is_none_or(|&(least, _)| score <= least) {
            continue;
        }
        let place = best.partition_point(|&(other, _)| other >= score);
        best.insert(place, (score, at));
        best.truncate(n);
    }
    best
}
