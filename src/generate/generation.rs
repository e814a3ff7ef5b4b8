//! Generation in progress: an iterator over the new tokens of a batch.

use candle_core::{DType, Tensor, bail};

use super::prompts::{last_tokens, left_padded};
use super::{Choose, Decoder, GenerationOptions, Sequence};
use crate::error::{Error, Result};

/// Generation in progress. Each step of the iterator gives one new token of each prompt, and none for one that has ended.
///
/// It can be left at any step; what was generated until then is in [`Self::tokens`]. Sequences that have ended are computed no more.
#[derive(Debug)]
pub struct Generation<D, C> {
    decoder: D,
    choose: C,
    options: GenerationOptions,
    sequences: Vec<Continued>,
    /// The sequences in the decoder's batch.
    batch: Vec<usize>,
    /// Whether their prompts were of unequal lengths.
    is_padded: bool,
    /// Whether the longest is beyond [`Decoder::renewed_behind`].
    is_long: bool,
    /// How many tokens each has behind its prompt.
    n_new: usize,
    has_failed: bool,
}

/// A prompt and what was put behind it.
#[derive(Debug)]
struct Continued {
    tokens: Vec<u32>,
    n_prompt: usize,
    finish: Option<Finish>,
}

/// Why a sequence has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// Its last token is one that ends it.
    StopToken,
    /// It has as many new tokens as it may have.
    MaxNewTokens,
    /// The model has no more positions.
    Positions,
    /// [`Generation::stop`] was called.
    Stopped,
}

impl<D: Decoder, C: Choose> Generation<D, C> {
    /// Begins to continue `prompts`. A [`Generator`](super::Generator) does this for a decoder-only model; here, a decoder of
    /// another kind takes part.
    ///
    /// # Errors
    /// If there is no prompt, or one is empty or longer than the decoder's positions.
    pub fn new(
        decoder: D,
        prompts: &[Vec<u32>],
        choose: C,
        options: GenerationOptions,
    ) -> Result<Self> {
        let fail = |reason: String| Err(Error::input("prompt", reason));
        if prompts.is_empty() {
            return fail("there is none; give at least one".to_string());
        }
        let limit = decoder.max_positions();
        for (i, prompt) in prompts.iter().enumerate() {
            let n = prompt.len();
            if n == 0 {
                return fail(format!("number {i} is empty; give at least one token"));
            }
            if let Some(limit) = limit.filter(|&limit| n > limit) {
                return fail(format!(
                    "number {i} has {n} tokens, but the model has {limit} positions; shorten it"
                ));
            }
        }
        // It goes behind the token that begins a text.
        let begins = prompts.iter().all(|prompt| prompt.len() == 1);
        let forced_first = options.forced_first.filter(|_| begins);
        let mut made = Self {
            decoder,
            choose,
            options: GenerationOptions {
                forced_first,
                ..options
            },
            sequences: prompts
                .iter()
                .map(|prompt| Continued::new(prompt))
                .collect(),
            batch: Vec::new(),
            is_padded: false,
            is_long: false,
            n_new: 0,
            has_failed: false,
        };
        made.end_where_full();
        Ok(made)
    }

    /// The new tokens of the prompt with this index so far.
    ///
    /// # Panics
    /// If there are fewer prompts.
    pub fn tokens(&self, index: usize) -> &[u32] {
        self.sequences[index].new_tokens()
    }

    /// Why the prompt with this index is not continued; `None` while it is.
    ///
    /// # Panics
    /// If there are fewer prompts.
    pub fn finish(&self, index: usize) -> Option<Finish> {
        self.sequences[index].finish
    }

    /// Ends the sequence with this index where it is.
    ///
    /// # Panics
    /// If there are fewer prompts.
    pub fn stop(&mut self, index: usize) {
        self.sequences[index].finish.get_or_insert(Finish::Stopped);
    }

    /// The new tokens of each prompt.
    pub fn into_tokens(self) -> Vec<Vec<u32>> {
        let new = |sequence: Continued| sequence.tokens[sequence.n_prompt..].to_vec();
        self.sequences.into_iter().map(new).collect()
    }

    /// The new tokens as a tensor `[prompts, n]` of `u32`, shorter rows filled up with the token for padding.
    ///
    /// # Errors
    /// If a row must be filled up, and no token is known to do it.
    pub fn padded(&self) -> Result<Tensor> {
        let rows = || self.sequences.iter().map(Continued::new_tokens);
        let n = rows().map(<[u32]>::len).max().unwrap_or(0);
        let mut all = Vec::with_capacity(n * self.sequences.len());
        for row in rows() {
            all.extend(row);
            match self.options.pad_token {
                Some(pad) => all.resize(all.len() + n - row.len(), pad),
                None if row.len() < n => {
                    let reason = "no pad_token is set, but the sequences are of unequal lengths";
                    return Err(Error::input("pad_token", reason));
                }
                None => {}
            }
        }
        let shape = (self.sequences.len(), n);
        Ok(Tensor::from_vec(all, shape, &candle_core::Device::Cpu)?)
    }

    /// Ends the sequences that may not have another token.
    fn end_where_full(&mut self) {
        let limit = self.decoder.max_positions().unwrap_or(usize::MAX);
        for sequence in self.sequences.iter_mut().filter(|s| s.finish.is_none()) {
            if self.n_new >= self.options.max_new_tokens {
                sequence.finish = Some(Finish::MaxNewTokens);
            } else if sequence.tokens.len() > limit {
                sequence.finish = Some(Finish::Positions);
            }
        }
    }

    /// One new token of each sequence that is not finished; `None` if all are.
    fn step(&mut self) -> candle_core::Result<Option<Vec<Option<u32>>>> {
        let running = self.sequences.iter().enumerate();
        let running = running.filter(|(_, sequence)| sequence.finish.is_none());
        let running: Vec<usize> = running.map(|(i, _)| i).collect();
        if running.is_empty() {
            return Ok(None);
        }
        let logits = self.logits(&running)?;
        let logits = self.options.ruled(logits, self.n_new)?;
        let sequences = running.iter().map(|&index| Sequence {
            index,
            tokens: &self.sequences[index].tokens,
        });
        let sequences: Vec<Sequence> = sequences.collect();
        let tokens = self.choose.choose(&logits, &sequences)?;
        if tokens.len() != running.len() {
            bail!(
                "{} tokens were chosen for {} sequences",
                tokens.len(),
                running.len()
            );
        }
        let mut step = vec![None; self.sequences.len()];
        for (&index, token) in running.iter().zip(tokens) {
            step[index] = Some(token);
            let sequence = &mut self.sequences[index];
            sequence.tokens.push(token);
            if self.options.stop_tokens.contains(&token) {
                sequence.finish = Some(Finish::StopToken);
            }
        }
        self.n_new += 1;
        self.end_where_full();
        Ok(Some(step))
    }

    /// The logits behind the last token of each of these sequences.
    fn logits(&mut self, running: &[usize]) -> candle_core::Result<Tensor> {
        let tokens = |&index: &usize| self.sequences[index].tokens.as_slice();
        let sequences: Vec<&[u32]> = running.iter().map(tokens).collect();
        let longest = sequences
            .iter()
            .map(|tokens| tokens.len())
            .max()
            .unwrap_or(0);
        let is_long = longest > self.decoder.renewed_behind();
        let input = if self.n_new == 0 || is_long != self.is_long {
            self.decoder.forget();
            let input = left_padded(&sequences)?;
            self.is_padded = input.attention_mask.is_some();
            input
        } else {
            if running != self.batch {
                let row = |index| self.batch.iter().position(|at| at == index);
                let rows: Vec<usize> = running.iter().filter_map(row).collect();
                self.decoder.keep_sequences(&rows)?;
            }
            last_tokens(&sequences, self.is_padded)?
        };
        (self.batch, self.is_long) = (running.to_vec(), is_long);
        let logits = self.decoder.next_logits(&input)?;
        match logits.dims() {
            [batch, _] if *batch == running.len() => logits.to_dtype(DType::F32),
            found => bail!("logits of shape {found:?} for {} sequences", running.len()),
        }
    }
}

impl<D: Decoder, C: Choose> Iterator for Generation<D, C> {
    type Item = Result<Vec<Option<u32>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let step = self.step();
        self.has_failed = step.is_err();
        step.map_err(Error::from).transpose()
    }
}

impl Continued {
    fn new(prompt: &[u32]) -> Self {
        Self {
            tokens: prompt.to_vec(),
            n_prompt: prompt.len(),
            finish: None,
        }
    }

    fn new_tokens(&self) -> &[u32] {
        &self.tokens[self.n_prompt..]
    }
}
