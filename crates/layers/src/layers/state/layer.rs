//! A layer's state.

use candle_blocks_kernels::memory::LargePages;
use candle_core::{Device, Result};

use super::encoder::EncoderState;
use super::named::{Given, Named};
use super::panels::{OwnRows, Panels};
use super::{Ledger, different_stacks, recurrent::Recurrent, rows::Rows, wrong_stack};
use crate::layers::visit::join;

/// A block's state.
#[derive(Clone, Debug)]
pub(crate) struct BlockState {
    pub mixer: LayerState,
    /// The encoder output's keys and values.
    pub encoder: EncoderState,
}

/// The states that a block reads and writes in a pass.
pub(crate) struct BlockStateMut<'a> {
    /// The mixer's own state, or that of an earlier layer whose keys and values it reads.
    pub mixer: &'a mut LayerState,
    pub encoder: &'a mut EncoderState,
}

/// A mixer's state.
#[derive(Clone, Debug)]
pub(crate) enum LayerState {
    /// Keys and values as tensors.
    Rows(Rows),
    /// Keys and values in the layout that a packed attention reads.
    Panels(Box<Panels>),
    /// The state of a recurrent mixer, packed or not.
    Recurrent(Recurrent),
    /// Two mixers side by side.
    Pair(Box<[LayerState; 2]>),
    /// Nothing, for a block without a mixer.
    Absent,
}

impl BlockState {
    /// Appends another batch's sequences. `paddings` are the positions that each batch gets as padding before its own.
    ///
    /// # Errors
    /// If the states belong to different stacks, or the encoder outputs have different lengths.
    pub fn join(&mut self, other: Self, paddings: [usize; 2]) -> Result<()> {
        self.mixer.join(other.mixer, paddings)?;
        self.encoder.join(other.encoder)
    }

    /// Removes all positions and keeps the allocated memory.
    pub fn reset(&mut self) {
        self.encoder.reset();
        self.mixer.reset();
    }

    /// Removes all but the first `seen` positions, also if a window has dropped some of these. Packed, each sequence has
    /// as many of these as `of_sequences` says. With 0, also removes the encoder output.
    pub fn forget_from(&mut self, seen: usize, of_sequences: &[usize]) {
        if seen == 0 {
            // Another prompt may attend to another encoder output.
            self.encoder.reset();
        }
        self.mixer.truncate(seen, of_sequences);
    }
}

impl LayerState {
    /// Creates an empty state for an attention that is not packed.
    pub fn rows() -> Self {
        Self::Rows(Rows::default())
    }

    /// Creates an empty state for a packed attention, whose keys and values are allocated from `pages`.
    pub fn panels(pages: &LargePages) -> Self {
        Self::Panels(Box::new(Panels::new(pages)))
    }

    /// Creates an empty state for a recurrent mixer.
    pub fn recurrent() -> Self {
        Self::Recurrent(Recurrent::default())
    }

    /// Creates the state for two mixers side by side.
    pub fn pair(first: Self, second: Self) -> Self {
        Self::Pair(Box::new([first, second]))
    }

    /// Creates the state of a block without a mixer, which has none.
    pub fn absent() -> Self {
        Self::Absent
    }

    /// Returns the rows, if the attention is not packed.
    pub fn as_rows(&mut self) -> Result<&mut Rows> {
        match self {
            Self::Rows(rows) => Ok(rows),
            _ => wrong_stack(),
        }
    }

    /// Returns the panels, if the attention is packed.
    pub fn as_panels(&mut self) -> Result<&mut Panels> {
        match self {
            Self::Panels(panels) => Ok(panels),
            _ => wrong_stack(),
        }
    }

    /// Returns the state of a recurrent mixer.
    pub fn as_recurrent(&mut self) -> Result<&mut Recurrent> {
        match self {
            Self::Recurrent(state) => Ok(state),
            _ => wrong_stack(),
        }
    }

    /// Returns both states, if two mixers stand side by side.
    pub fn as_pair(&mut self) -> Result<(&mut Self, &mut Self)> {
        match self {
            Self::Pair(pair) => {
                let [first, second] = &mut **pair;
                Ok((first, second))
            }
            _ => wrong_stack(),
        }
    }

    /// Returns both states for a check.
    pub fn check_pair(&self) -> Result<&[Self; 2]> {
        match self {
            Self::Pair(pair) => Ok(pair),
            _ => wrong_stack(),
        }
    }

    fn reset(&mut self) {
        match self {
            Self::Rows(rows) => *rows = Rows::default(),
            Self::Panels(panels) => panels.reset(),
            Self::Recurrent(state) => *state = Recurrent::default(),
            Self::Pair(pair) => pair.iter_mut().for_each(Self::reset),
            Self::Absent => {}
        }
    }

    /// Removes all but the first `seen` positions. Packed, each sequence has as many of these as `of_sequences` says.
    fn truncate(&mut self, seen: usize, of_sequences: &[usize]) {
        match self {
            Self::Rows(rows) => rows.truncate(seen),
            Self::Panels(panels) => panels.truncate(seen, of_sequences),
            Self::Recurrent(state) => state.truncate(seen),
            Self::Pair(pair) => pair
                .iter_mut()
                .for_each(|of| of.truncate(seen, of_sequences)),
            Self::Absent => {}
        }
    }

    /// Checks the state of a recurrent mixer.
    ///
    /// # Errors
    /// Same as [`Recurrent::check`], or if the state is another mixer's.
    pub fn check_recurrent(&self, batch: usize, dims: &[Vec<usize>]) -> Result<()> {
        match self {
            Self::Recurrent(state) => state.check(batch, dims),
            _ => wrong_stack(),
        }
    }

    /// # Errors
    /// If the state is a mixer's.
    pub fn check_absent(&self) -> Result<()> {
        match self {
            Self::Absent => Ok(()),
            _ => wrong_stack(),
        }
    }

    /// # Errors
    /// If the attention is packed but the state is not, or the reverse.
    pub fn check(&self, packed: Option<super::Cached>) -> Result<()> {
        match (self, packed) {
            (Self::Rows(_), None) => Ok(()),
            (Self::Panels(panels), Some(own)) => panels.check(own),
            _ => wrong_stack(),
        }
    }

    /// Adds the state to a cache's tensors.
    pub fn store(&self, prefix: &str, to: &mut Named) -> Result<()> {
        match self {
            Self::Rows(rows) => rows.store(prefix, to),
            Self::Panels(panels) => panels.store(prefix, to),
            Self::Recurrent(state) => state.store(prefix, to),
            Self::Pair(pair) => {
                let mut numbered = pair.iter().enumerate();
                numbered.try_for_each(|(i, of)| of.store(&join(prefix, i), to))
            }
            Self::Absent => Ok(()),
        }
    }

    /// Replaces the state by that in a cache's tensors. `own` is the form of a packed attention's rows.
    ///
    /// # Errors
    /// If they are another mixer's.
    pub fn restore(&mut self, own: Option<&OwnRows>, given: &Given, ledger: &Ledger) -> Result<()> {
        match self {
            Self::Rows(rows) => *rows = Rows::restored(given, ledger)?,
            Self::Panels(panels) => match own {
                Some(own) => panels.restore(own, given, ledger)?,
                None => return wrong_stack(),
            },
            Self::Recurrent(state) => *state = Recurrent::restored(given, ledger)?,
            Self::Pair(pair) => {
                for (i, of) in pair.iter_mut().enumerate() {
                    of.restore(own, &given.at(i), ledger)?;
                }
            }
            Self::Absent => {}
        }
        Ok(())
    }

    /// Returns the bytes that the state takes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.bytes(),
            Self::Panels(panels) => panels.bytes(),
            Self::Recurrent(state) => state.bytes(),
            Self::Pair(pair) => pair.iter().map(Self::bytes).sum(),
            Self::Absent => 0,
        }
    }

    /// Returns the position to which the state can go back: `to`, or an earlier one.
    pub fn reaches(&self, to: usize) -> usize {
        let lacks = match self {
            Self::Rows(rows) => rows.lacks(to),
            Self::Panels(panels) => panels.lacks(to),
            Self::Recurrent(state) => return state.reaches(to),
            Self::Pair(pair) => return pair.iter().fold(to, |to, of| of.reaches(to)),
            Self::Absent => false,
        };
        if lacks { 0 } else { to }
    }

    /// Appends another batch's sequences. `paddings` are the positions that each batch gets as padding before its own.
    ///
    /// # Errors
    /// If the states belong to different stacks.
    pub fn join(&mut self, other: Self, paddings: [usize; 2]) -> Result<()> {
        match (self, other) {
            (Self::Rows(own), Self::Rows(new)) => own.join(new, paddings),
            (Self::Panels(own), Self::Panels(new)) => own.join(*new, paddings),
            (Self::Recurrent(own), Self::Recurrent(new)) => own.join(new, paddings),
            (Self::Pair(own), Self::Pair(new)) => {
                let mut pairs = own.iter_mut().zip(*new);
                pairs.try_for_each(|(own, new)| own.join(new, paddings))
            }
            (Self::Absent, Self::Absent) => Ok(()),
            _ => different_stacks(),
        }
    }

    /// Returns the device of the state, if there is one.
    pub fn device(&self) -> Option<Device> {
        match self {
            Self::Rows(rows) => Some(rows.device()),
            Self::Panels(_) => Some(Device::Cpu),
            Self::Recurrent(state) => Some(state.device()),
            Self::Pair(pair) => pair[0].device(),
            Self::Absent => None,
        }
    }

    /// Replaces the batch by the given sequences, in this order. A sequence may be given several times.
    pub fn take_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        match self {
            Self::Rows(rows) => rows.take_sequences(sequences),
            Self::Recurrent(state) => state.take_sequences(sequences),
            Self::Panels(panels) => {
                panels.take_sequences(sequences);
                Ok(())
            }
            Self::Pair(pair) => pair
                .iter_mut()
                .try_for_each(|of| of.take_sequences(sequences)),
            Self::Absent => Ok(()),
        }
    }
}
