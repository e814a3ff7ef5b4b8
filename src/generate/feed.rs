//! What a decoder is given at each step: a prompt at first, and then the last tokens.

use candle_core::{DType, Result, Tensor, bail};

use super::Decoder;
use super::prompts::{last_tokens, left_padded};

/// A decoder and the sequences in its batch.
#[derive(Debug)]
pub(super) struct Feed<D> {
    decoder: D,
    /// The number of sequences in the decoder's batch; 0 before the first step.
    batch: usize,
    /// Whether their prompts were of unequal lengths.
    is_padded: bool,
    /// Whether the longest is beyond [`Decoder::renewed_behind`].
    is_long: bool,
}

impl<D: Decoder> Feed<D> {
    pub fn new(decoder: D) -> Self {
        Self {
            decoder,
            batch: 0,
            is_padded: false,
            is_long: false,
        }
    }

    pub fn decoder(&mut self) -> &mut D {
        &mut self.decoder
    }

    /// The number of positions that the decoder has.
    pub fn max_positions(&self) -> usize {
        self.decoder.max_positions().unwrap_or(usize::MAX)
    }

    /// The number of sequences of the step before.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The logits behind the last token of each of these sequences, `[sequences, n_tokens]`. Each has one token more than the
    /// sequence of the step before at the place that `parents` says.
    pub fn logits(&mut self, sequences: &[&[u32]], parents: &[usize]) -> Result<Tensor> {
        let lengths = sequences.iter().map(|tokens| tokens.len());
        let is_long = lengths.max().unwrap_or(0) > self.decoder.renewed_behind();
        let is_first = self.batch == 0;
        let moves = !parents.iter().copied().eq(0..self.batch);
        if !is_first && moves {
            self.decoder.keep_sequences(parents)?;
        }
        let input = if is_first || is_long != self.is_long {
            self.decoder.forget();
            let input = left_padded(sequences)?;
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
