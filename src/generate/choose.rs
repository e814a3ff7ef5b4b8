//! The trait for selecting the next token of each sequence.

use candle_core::{Result, Tensor};

/// Selects the next token of each sequence.
///
/// Implemented by [`Sampler`](super::Sampler), and by every closure `FnMut(&Tensor) -> Result<Vec<u32>>` from logits
/// `[sequences, n_tokens]` to one token for each. With candle's `LogitsProcessor`:
///
/// ```no_run
/// # use candle_blocks::candle_core::{Result, Tensor};
/// # struct LogitsProcessor;
/// # impl LogitsProcessor { fn sample(&mut self, _: &Tensor) -> Result<u32> { Ok(0) } }
/// # let mut processor = LogitsProcessor;
/// let choose = move |logits: &Tensor| -> Result<Vec<u32>> {
///     (0..logits.dim(0)?).map(|i| processor.sample(&logits.get(i)?)).collect()
/// };
/// # fn is_one(_: impl candle_blocks::generate::Choose) {}
/// # is_one(choose);
/// ```
pub trait Choose {
    /// Returns the next token for each of `sequences`, whose logits are the rows of `logits` `[sequences, n_tokens]`.
    /// Sequences that have ended are not included.
    ///
    /// # Errors
    /// If no token can be selected.
    fn choose(&mut self, logits: &Tensor, sequences: &[Sequence]) -> Result<Vec<u32>>;

    /// Returns whether it may select other tokens than the most likely one. Beam search refuses those that do.
    fn draws(&self) -> bool {
        true
    }
}

/// A sequence that is being extended.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'t> {
    /// Its index in the batch.
    pub index: usize,
    /// Its prompt and the tokens generated so far.
    pub tokens: &'t [u32],
}

impl<F: FnMut(&Tensor) -> Result<Vec<u32>>> Choose for F {
    fn choose(&mut self, logits: &Tensor, _: &[Sequence]) -> Result<Vec<u32>> {
        self(logits)
    }
}
