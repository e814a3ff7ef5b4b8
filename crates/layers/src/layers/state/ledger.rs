//! The bookkeeping of a cache: number and mask of the positions seen so far.

use candle_core::{DType, Device, Result, Tensor, bail};

use super::named::{Given, Named, of_numbers};

use crate::config::{MixerFacts, getters};
use crate::layers::ForwardContext;
use crate::layers::padding_mask::{PaddingMask, padding_before};

/// The positions seen so far: the number of sequences, the number of positions, and the key mask.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    batch: usize,
    /// Includes positions that a window has dropped.
    seen: usize,
    /// `[batch, seen]`, 1 = keep; `None` while there is no mask.
    keep: Option<PaddingMask>,
}

impl Ledger {
    getters! {
        /// The number of sequences in the present or the last use.
        batch(&self) -> usize => self.batch;
        /// The number of positions.
        seen(&self) -> usize => self.seen;
    }

    /// Adds the sizes and the mask to a cache's tensors.
    pub fn store(&self, to: &mut Named) -> Result<()> {
        to.insert("numbers".into(), of_numbers(&[self.batch, self.seen])?);
        if let Some(keep) = &self.keep {
            to.insert("mask".into(), keep.device.clone());
        }
        Ok(())
    }

    /// Returns the ledger of a cache's tensors.
    ///
    /// # Errors
    /// If they are no cache's.
    pub fn restored(given: &Given) -> Result<Self> {
        let numbers = given.numbers("numbers", 2)?;
        let (batch, seen) = (numbers[0], numbers[1]);
        // Each sequence has rows.
        if batch > given.n_elements() || (seen > 0) != (batch > 0) {
            return given.other_positions([batch, seen], 0);
        }
        let mask = given.find("mask");
        if let Some(mask) = mask
            .as_ref()
            .filter(|mask| mask.dims() != [batch, seen] || mask.dtype() != DType::U8)
        {
            return given.misfit("mask", mask, format!("[{batch}, {seen}] and U8"));
        }
        let keep = mask.map(|mask| PaddingMask::new(mask.to_device(&Device::Cpu)?, mask.device()));
        let keep = keep.transpose()?;
        Ok(Self { batch, seen, keep })
    }

    /// Adds `seq` new positions with their key mask; returns the key mask of all positions.
    ///
    /// # Errors
    /// If the batch differs from the earlier positions', or the mask does not cover the new positions. Nothing is
    /// added then.
    pub fn extend(
        &mut self,
        new: Option<&PaddingMask>,
        (batch, seq): (usize, usize),
    ) -> Result<Option<PaddingMask>> {
        let seen = self.seen;
        if seen > 0 && batch != self.batch {
            bail!(
                "the cache holds a batch of {}, but the input has a batch of {batch}; make another cache with new_cache",
                self.batch
            );
        }
        if let Some(new) = new
            && new.host.dims() != [batch, seq]
        {
            bail!(
                "attention_mask: has shape {:?}, expected [batch, new positions] = [{batch}, {seq}]; \
                 the cache already holds the mask of the {seen} earlier positions",
                new.host.dims()
            );
        }
        let old = self.keep.as_ref().filter(|_| seen > 0);
        self.keep = match old.or(new) {
            None => None,
            Some(like) => {
                let ones = |n| PaddingMask::ones((batch, n), like.device.device());
                let mask =
                    |of: Option<&PaddingMask>, n| of.map_or_else(|| ones(n), |m| Ok(m.clone()));
                Some(mask(old, seen)?.cat(&mask(new, seq)?)?)
            }
        };
        (self.batch, self.seen) = (batch, seen + seq);
        Ok(self.keep.clone())
    }

    /// Returns how many of the first `seen` positions follow the padding before each sequence.
    pub fn of_sequences(&self, seen: usize) -> Vec<usize> {
        let Some(keep) = &self.keep else {
            return vec![seen; self.batch];
        };
        let marks = keep.host.to_vec2::<u8>().unwrap_or_default();
        let of = |marks: Vec<u8>| seen.saturating_sub(padding_before(&marks));
        marks.into_iter().map(of).collect()
    }

    /// Keeps only the given sequences.
    ///
    /// # Errors
    /// If a sequence is not in the batch, or the order differs.
    pub fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        let rises = sequences.windows(2).all(|pair| pair[0] < pair[1]);
        if sequences.is_empty() || !rises || sequences.last() >= Some(&self.batch) {
            bail!(
                "cannot keep sequences {sequences:?} of a batch of {}; expected rising indices from 0 to {}",
                self.batch,
                self.batch.saturating_sub(1)
            );
        }
        self.take_sequences(sequences)
    }

    /// Replaces the batch by copies of the given sequences, in this order.
    ///
    /// # Errors
    /// If a sequence is not in the batch.
    pub fn take_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        if sequences.is_empty() || sequences.iter().any(|&row| row >= self.batch) {
            bail!(
                "cannot take sequences {sequences:?} from a batch of {}",
                self.batch
            );
        }
        let keep = self.keep.as_ref().map(|keep| keep.of_sequences(sequences));
        self.keep = keep.transpose()?;
        self.batch = sequences.len();
        Ok(())
    }

    /// Appends another batch's sequences. The batch with fewer positions gets padding before them.
    pub fn join(&self, other: &Self, device: &Device) -> Result<Self> {
        let seen = self.seen.max(other.seen);
        let has_mask = |of: &Self| of.keep.is_some() || of.seen < seen;
        let keep = match has_mask(self) || has_mask(other) {
            true => {
                let mask = |of: &Self| {
                    let keep = match &of.keep {
                        Some(keep) => keep.clone(),
                        None => PaddingMask::ones((of.batch, of.seen), device)?,
                    };
                    keep.after_padding(seen - of.seen)
                };
                Some(mask(self)?.join(&mask(other)?)?)
            }
            false => None,
        };
        Ok(Self {
            batch: self.batch + other.batch,
            seen,
            keep,
        })
    }

    /// Removes all but the first `seen` positions.
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

/// Checks input and context of a cached pass; returns the batch and the number of new positions.
///
/// # Errors
/// If the input is not `[batch, new positions, d_model]`, the context trains or has an additive mask, the cache has
/// another number of layers, or a mixer is not causal.
pub(crate) fn check_cached(
    x: &Tensor,
    context: &ForwardContext,
    (of_cache, of_stack): (usize, usize),
    mut mixers: impl Iterator<Item = MixerFacts>,
) -> Result<(usize, usize)> {
    let &[batch, seq, _] = x.dims() else {
        let found = x.dims();
        bail!("stack: input has shape {found:?}, expected [batch, new positions, d_model]");
    };
    if context.train() || context.mask().additive().is_some() {
        bail!(
            "a cache works only in evaluation and with a padding mask; turn training off and remove the additive mask"
        );
    }
    if of_cache != of_stack {
        bail!("the cache has {of_cache} layers, but the stack has {of_stack}");
    }
    if mixers.any(|mixer| !mixer.is_causal) {
        bail!(
            "a cache needs causal attention, but earlier positions of this stack attend to later ones"
        );
    }
    Ok((batch, seq))
}
