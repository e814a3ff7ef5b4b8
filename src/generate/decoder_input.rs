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

    /// Returns the logits of the next token for each sequence, `[sequences, n_tokens]`. Each sequence extends, by one token,
    /// the previous step's sequence with the index in `parents`.
    pub fn logits(&mut self, sequences: &[&[u32]], parents: &[usize]) -> Result<Tensor> {
        let lengths = sequences.iter().map(|tokens| tokens.len());
        let is_long = lengths.max().unwrap_or(0) > self.decoder.renewed_after();
        let is_first = self.batch == 0;
        let moves = !parents.iter().copied().eq(0..self.batch);
        if !is_first && moves {
            self.decoder.keep_sequences(parents)?;
        }
        let input = if is_first || is_long != self.is_long {
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
        (self.batch, self.is_long) = (sequences.len(), is_long);
        let logits = self.decoder.next_logits(&input)?;
        match logits.dims() {
            [batch, _] if *batch == sequences.len() => logits.to_dtype(DType::F32),
            found => bail!(
                "logits of shape {found:?} for {} sequences",
                sequences.len()
            ),
        }
    }
}
