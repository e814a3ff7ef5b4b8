//! What a cache knows of the positions seen so far, in whatever form it keeps their keys and values.

use candle_core::{Result, Tensor, bail};

use crate::config::{AttentionConfig, Visibility, getters};
use crate::layers::{ForwardContext, marks::Marks};

/// The positions seen so far: of how many sequences, how many, and which of them are kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    batch: usize,
    /// Positions that a window has dropped since are counted too.
    seen: usize,
    /// `[batch, seen]`, 1 = keep; `None` while nothing is masked.
    keep: Option<Marks>,
}

impl Ledger {
    getters! {
        /// The number of sequences, of this or the last use.
        batch(&self) -> usize => self.batch;
        /// The number of positions.
        seen(&self) -> usize => self.seen;
    }

    /// Takes in `seq` new positions with their marks; returns the marks of all.
    ///
    /// # Errors
    /// If the batch is another than that of the earlier positions, or the marks are not of the new ones; nothing is
    /// taken in then.
    pub fn extend(
        &mut self,
        new: Option<&Marks>,
        (batch, seq): (usize, usize),
    ) -> Result<Option<Marks>> {
        let seen = self.seen;
        if seen > 0 && batch != self.batch {
            bail!(
                "the cache is of a batch of {}, the input of {batch}; make another with new_cache",
                self.batch
            );
        }
        if let Some(new) = new
            && new.host.dims() != [batch, seq]
        {
            bail!(
                "attention_mask: has shape {:?}, expected [batch, new positions] = [{batch}, {seq}]; \
                 the cache remembers the mask of the {seen} earlier positions",
                new.host.dims()
            );
        }
        let old = self.keep.as_ref().filter(|_| seen > 0);
        self.keep = match old.or(new) {
            None => None,
            Some(like) => {
                let ones = |n| Marks::ones((batch, n), like.device.device());
                let marks = |of: Option<&Marks>, n| of.map_or_else(|| ones(n), |m| Ok(m.clone()));
                Some(marks(old, seen)?.cat(&marks(new, seq)?)?)
            }
        };
        (self.batch, self.seen) = (batch, seen + seq);
        Ok(self.keep.clone())
    }

    /// Keeps these sequences of the batch alone.
    ///
    /// # Errors
    /// If one is not in the batch, or they are in another order.
    pub fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        let rises = sequences.windows(2).all(|pair| pair[0] < pair[1]);
        if sequences.is_empty() || !rises || sequences.last() >= Some(&self.batch) {
            bail!(
                "sequences {sequences:?} are to be kept of a batch of {}; expected some of 0 to {}, in this order",
                self.batch,
                self.batch.saturating_sub(1)
            );
        }
        self.take_sequences(sequences)
    }

    /// Goes on with copies of these sequences of the batch, in this order.
    ///
    /// # Errors
    /// If one is not in the batch.
    pub fn take_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        if sequences.is_empty() || sequences.iter().any(|&row| row >= self.batch) {
            bail!(
                "sequences {sequences:?} are taken of a batch of {}",
                self.batch
            );
        }
        let keep = self.keep.as_ref().map(|keep| keep.of_sequences(sequences));
        self.keep = keep.transpose()?;
        self.batch = sequences.len();
        Ok(())
    }

    /// Forgets all but the first `seen` positions.
    pub fn truncate(&mut self, seen: usize) -> Result<()> {
        if seen < self.seen {
            self.seen = seen;
            self.keep = match self.keep.take() {
                Some(keep) if seen > 0 => Some(keep.narrow(0, seen)?),
                _ => None,
            };
        }
        Ok(())
    }
}

/// Checks what a stack is given to add to a cache; returns the batch and the number of new positions.
///
/// # Errors
/// If the input is not `[batch, new positions, d_model]`, the context trains or has an additive mask, the cache is of
/// another number of layers, or an attention is not causal.
pub(crate) fn check_cached<'a>(
    x: &Tensor,
    context: &ForwardContext,
    (of_cache, of_stack): (usize, usize),
    mut attentions: impl Iterator<Item = &'a AttentionConfig>,
) -> Result<(usize, usize)> {
    let &[batch, seq, _] = x.dims() else {
        let found = x.dims();
        bail!("stack: input has shape {found:?}, expected [batch, new positions, d_model]");
    };
    if context.train() || context.mask().additive().is_some() {
        bail!("a cache serves evaluation with a padding mask; not training or an additive mask");
    }
    if of_cache != of_stack {
        bail!("the cache has {of_cache} layers, the stack {of_stack}");
    }
    if attentions.any(|attention| attention.visibility != Visibility::Causal) {
        bail!("a cache needs causal attention; earlier positions of this stack see later ones");
    }
    Ok((batch, seq))
}
