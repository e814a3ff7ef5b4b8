//! The state of a recurrent mixer: tensors of one size, whatever the number of positions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle_core::{Device, Result, Tensor, bail};

use super::cached_rows::of_sequences;
use super::named::{Given, Named, of_numbers};
use super::{Ledger, different_stacks};
use crate::layers::visit::join;
use crate::ops;

/// A recurrent mixer's state after the last call, and the one before it. It cannot be cut at any position: removing
/// positions goes back to one of the two, or to none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recurrent {
    now: Option<Snapshot>,
    before: Option<Snapshot>,
}

/// Tensors `[batch, ..]` after a number of positions, which later calls replace and never change.
#[derive(Clone, Debug)]
struct Snapshot {
    positions: usize,
    tensors: Vec<Tensor>,
    /// Shared with clones, also with parts of their sequences: true if tensors elsewhere may have the same memory.
    is_elsewhere: Arc<AtomicBool>,
}

impl Snapshot {
    fn new(positions: usize, tensors: Vec<Tensor>, is_elsewhere: bool) -> Self {
        Self {
            positions,
            tensors,
            is_elsewhere: Arc::new(is_elsewhere.into()),
        }
    }

    /// Returns the last tensor if nobody else has its memory.
    fn into_spare(mut self) -> Option<Tensor> {
        let is_elsewhere = Arc::into_inner(self.is_elsewhere)?.into_inner();
        self.tensors.pop().filter(|_| !is_elsewhere)
    }
}

impl Recurrent {
    /// Returns the tensor with this index, or `None` before the first position.
    pub fn tensor(&self, at: usize) -> Option<&Tensor> {
        self.now.as_ref()?.tensors.get(at)
    }

    /// Sets the tensors after a call that ends at this number of positions.
    pub fn advance(&mut self, positions: usize, tensors: Vec<Tensor>) {
        let now = Snapshot::new(positions, tensors, false);
        self.before = self.now.replace(now);
    }

    /// Forgets the state before the last call, which the next one replaces anyway, and returns its last tensor if nobody
    /// else has the memory.
    pub fn take_spare(&mut self) -> Option<Tensor> {
        self.before.take()?.into_spare()
    }

    /// Adds both states to a cache's tensors.
    pub fn store(&self, prefix: &str, to: &mut Named) -> Result<()> {
        let mut numbers = Vec::new();
        for (name, state) in ["now", "before"].into_iter().zip([&self.now, &self.before]) {
            let tensors = state.as_ref().map_or(&[][..], |state| &state.tensors);
            if let Some(state) = state {
                state.is_elsewhere.store(true, Relaxed);
            }
            numbers.extend([tensors.len(), state.as_ref().map_or(0, |of| of.positions)]);
            for (i, tensor) in tensors.iter().enumerate() {
                to.insert(join(prefix, format_args!("{name}.{i}")), tensor.clone());
            }
        }
        to.insert(join(prefix, "numbers"), of_numbers(&numbers)?);
        Ok(())
    }

    /// Returns the states in a cache's tensors.
    ///
    /// # Errors
    /// If they are another mixer's.
    pub fn restored(given: &Given, ledger: &Ledger) -> Result<Self> {
        let numbers = given.numbers("numbers", 4)?;
        let state = |name: &str, n: usize, positions: usize| {
            let given = given.at(name);
            let tensors = (0..n).map(|i| given.of_batch(i, ledger.batch()));
            let tensors = tensors.collect::<Result<Vec<_>>>()?;
            let state = (n > 0).then(|| Snapshot::new(positions, tensors, true));
            Ok::<_, candle_core::Error>(state)
        };
        let seen = ledger.seen();
        if (numbers[0] > 0) != (seen > 0) || (seen > 0 && numbers[1] != seen) || numbers[3] > seen {
            return given.other_positions([numbers[1], numbers[3]], seen);
        }
        Ok(Self {
            now: state("now", numbers[0], numbers[1])?,
            before: state("before", numbers[2], numbers[3])?,
        })
    }

    /// # Errors
    /// If the state belongs to another number of sequences, or its tensors have other dimensions than `dims` after the
    /// batch.
    pub fn check(&self, batch: usize, dims: &[Vec<usize>]) -> Result<()> {
        let Some(now) = &self.now else {
            return Ok(());
        };
        let found = now.tensors.iter().map(Tensor::dims);
        let expected = dims.iter().map(|dims| [&[batch], &dims[..]].concat());
        if found.clone().eq(expected.clone()) {
            return Ok(());
        }
        let (found, expected): (Vec<_>, Vec<_>) = (found.collect(), expected.collect());
        bail!(
            "the cache holds states of {found:?}, but this mixer has {expected:?}; make another cache with new_cache"
        )
    }

    /// Returns the bytes of both states.
    pub fn bytes(&self) -> usize {
        let states = self.now.iter().chain(&self.before);
        let tensors = states.flat_map(|state| &state.tensors);
        let bytes = |of: &Tensor| of.elem_count() * of.dtype().size_in_bytes();
        tensors.map(bytes).sum()
    }

    /// Returns the last position, at most `to`, to which the state can go back.
    pub fn reaches(&self, to: usize) -> usize {
        let states = self.now.iter().chain(&self.before);
        let positions = states.map(|state| state.positions);
        positions.filter(|&of| of <= to).max().unwrap_or(0)
    }

    /// Goes back to `seen` positions, which the state [reaches](Self::reaches).
    pub fn truncate(&mut self, seen: usize) {
        if self.now.as_ref().is_some_and(|now| now.positions > seen) {
            self.now = self.before.take_if(|before| before.positions <= seen);
            self.before = None;
        }
    }

    /// Appends another batch's sequences. `paddings` are the positions that each batch gets as padding before its own.
    ///
    /// # Errors
    /// If the tensors of the other batch have other dimensions or another dtype.
    pub fn join(&mut self, other: Self, paddings: [usize; 2]) -> Result<()> {
        let (Some(own), Some(new)) = (&self.now, &other.now) else {
            return different_stacks();
        };
        let is_like = |(own, new): (&Tensor, &Tensor)| {
            own.dims().get(1..) == new.dims().get(1..)
                && own.dtype() == new.dtype()
                && own.device().same_device(new.device())
        };
        let mut pairs = own.tensors.iter().zip(&new.tensors);
        if own.tensors.len() != new.tensors.len() || !pairs.all(is_like) {
            return different_stacks();
        }
        let join = |(own, new): (&Tensor, &Tensor)| {
            ops::record("cat", own)?;
            Tensor::cat(&[own, new], 0)
        };
        let tensors = own.tensors.iter().zip(&new.tensors).map(join);
        let positions = own.positions + paddings[0];
        let tensors = tensors.collect::<Result<_>>()?;
        self.now = Some(Snapshot::new(positions, tensors, false));
        self.before = None;
        Ok(())
    }

    /// Returns the tensors' device; the CPU if there are none.
    pub fn device(&self) -> Device {
        let first = self.tensor(0);
        first.map_or(Device::Cpu, |first| first.device().clone())
    }

    /// Replaces the batch by the given sequences, in this order.
    pub fn take_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        for state in self.now.iter_mut().chain(&mut self.before) {
            for tensor in &mut state.tensors {
                ops::record("cat", tensor)?;
                *tensor = of_sequences(tensor, sequences)?;
            }
        }
        Ok(())
    }
}
