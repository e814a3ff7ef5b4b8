//! Builds a decoder's input at each step: first the prompts, then the last tokens.

use candle_core::{DType, Result, Tensor, bail};

use super::Decoder;
use super::prompts::{last_tokens, left_padded};

/// A decoder and the sequences in its batch.
#[derive(Debug)]
pub(super) struct DecoderInput<D> {
    decoder: D,
    /// The number of sequences in the decoder's batch; 0 before the first step.
    batch: usize,
    /// The prompts had unequal lengths.
    is_padded: bool,
    /// The longest sequence is beyond [`Decoder::renewed_after`].
    is_long: bool,
}

impl<D: Decoder> DecoderInput<D> {
    pub fn new(decoder: D) -> Self {
        Self {
            decoder,
            batch: 0,
            is_padded: false,
            is_long: false,
        }
    }

    pub fn into_decoder(self) -> D {
        self.decoder
    }

    pub fn decoder(&mut self) -> &mut D {
        &mut self.decoder
    }

    /// Returns the decoder's maximum number of positions.
    pub fn max_positions(&self) -> usize {
        self.decoder.max_positions().unwrap_or(usize::MAX)
    }

    /// Returns the number of sequences in the previous step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Returns the logits of the next token for each sequence, `[sequences, n_tokens]`. The first sequences each extend, by
    /// one token, the previous step's sequence with the index in `parents`. The others join the batch.
    pub fn logits(&mut self, sequences: &[&[u32]], parents: &[usize]) -> Result<Tensor> {
        let lengths = sequences.iter().map(|tokens| tokens.len());
        let is_long = lengths.max().unwrap_or(0) > self.decoder.renewed_after();
        let is_first = self.batch == 0 || parents.is_empty();
        let moves = !parents.iter().copied().eq(0..self.batch);
        if !is_first && moves {
            self.decoder.keep_sequences(parents)?;
        }
        let is_whole = is_first || is_long != self.is_long;
        let (sequences, joining) = sequences.split_at(match is_whole {
            true => sequences.len(),
            false => parents.len(),
        });
        let input = if is_whole {
            let n_kept = match sequences {
                [only] if is_first => self.decoder.keep_prefix(only)?,
                _ => {
                    self.decoder.forget();
                    0
                }
            };
            let new = sequences.iter().map(|tokens| &tokens[n_kept..]);
            let input = left_padded(&new.collect::<Vec<_>>())?;
            self.is_padded = input.attention_mask.is_some();
            input
        } else {
            last_tokens(sequences, self.is_padded)?
        };
        (self.batch, self.is_long) = (sequences.len() + joining.len(), is_long);
        let mut logits = vec![of_batch(
            self.decoder.next_logits(&input)?,
            sequences.len(),
        )?];
        for tokens in joining {
            // Positions before a shorter sequence are padding.
            self.is_padded = true;
            let input = left_padded(&[tokens])?;
            logits.push(of_batch(self.decoder.join(&input)?, 1)?);
        }
        Tensor::cat(&logits, 0)
    }
}

/// Returns logits `[n, n_tokens]` in f32.
///
/// # Errors
/// If they have another shape.
fn of_batch(logits: Tensor, n: usize) -> Result<Tensor> {
    match logits.dims() {
        [batch, _] if *batch == n => logits.to_dtype(DType::F32),
        found => bail!("logits of shape {found:?} for {n} sequences"),
    }
}
