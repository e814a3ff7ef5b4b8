//! What chooses the next token of each sequence.

use candle_core::{Result, Tensor};

/// Chooses the next token of each sequence.
///
/// [`Sampler`](super::Sampler) does, and every closure `FnMut(&Tensor) -> Result<Vec<u32>>` from logits `[sequences, n_tokens]`
/// to a token for each. With candle's `LogitsProcessor`:
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
    /// The next token of each of `sequences`, whose logits are the rows of `logits` `[sequences, n_tokens]`. Sequences that have
    /// ended are not among them.
    ///
    /// # Errors
    /// If no token can be chosen.
    fn choose(&mut self, logits: &Tensor, sequences: &[Sequence]) -> Result<Vec<u32>>;

    /// Whether it may choose another token than the likeliest. Beam search looks for the likeliest sequences, and refuses one
    /// that does.
    fn draws(&self) -> bool {
        true
    }
}

/// A sequence that is continued.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'t> {
    /// Its number in the batch.
    pub index: usize,
    /// Its prompt and what was generated behind it.
    pub tokens: &'t [u32],
}

impl<F: FnMut(&Tensor) -> Result<Vec<u32>>> Choose for F {
    fn choose(&mut self, logits: &Tensor, _: &[Sequence]) -> Result<Vec<u32>> {
        self(logits)
    }
}
