//! The encoder output's keys and values, which cross-attention projects once.

use candle_blocks_kernels::attention::KeyValuePanels;
use candle_blocks_kernels::memory::LargePages;
use candle_core::{Result, Tensor, bail};

use super::cached_rows::of_sequences;
use super::named::{Given, Named};
use super::panels::{OwnRows, panel_bytes, panels_shape, restored_panels, store_panels};
use super::shape::{CacheShape, Cached, misfit};
use super::{different_stacks, reordered, without_graph, wrong_stack};
use crate::layers::visit::join;

/// The encoder output's keys and values for one cross-attention.
#[derive(Clone, Debug)]
pub(crate) enum EncoderState {
    /// Keys and values as tensors.
    Rows(Option<(Tensor, Tensor)>),
    /// Each sequence's keys and values in the layout that a packed attention reads. None before the first pass.
    Panels(Vec<KeyValuePanels>),
}

impl EncoderState {
    /// Creates an empty state.
    pub fn new(is_packed: bool) -> Self {
        match is_packed {
            true => Self::Panels(Vec::new()),
            false => Self::Rows(None),
        }
    }

    /// Removes the keys and values.
    pub fn reset(&mut self) {
        match self {
            Self::Rows(rows) => *rows = None,
            Self::Panels(panels) => panels.clear(),
        }
    }

    /// Adds the keys and values to a cache's tensors.
    pub fn store(&self, prefix: &str, to: &mut Named) -> Result<()> {
        match self {
            Self::Rows(Some((keys, values))) => {
                to.insert(join(prefix, "keys"), keys.clone());
                to.insert(join(prefix, "values"), values.clone());
                Ok(())
            }
            Self::Panels(panels) if !panels.is_empty() => store_panels(panels, prefix, to),
            Self::Rows(None) | Self::Panels(_) => Ok(()),
        }
    }

    /// Replaces the state by that in a cache's tensors, if they have one. `own` is the form of a packed cross-attention.
    ///
    /// # Errors
    /// If they are another stack's.
    pub fn restore(&mut self, own: Option<OwnRows>, given: &Given, batch: usize) -> Result<()> {
        match (self, own) {
            (Self::Rows(rows), None) if given.dims("keys").is_some() => {
                let [keys, values] = ["keys", "values"].map(|name| given.tensor(name, 3, batch));
                *rows = Some((keys?, values?));
            }
            (Self::Panels(panels), Some(own)) if given.dims("starts").is_some() => {
                if let Cached::Panels(shape) = own.cached {
                    let pages = LargePages::default();
                    *panels = restored_panels((shape, own.cpu), given, None, &pages)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// # Errors
    /// If cached keys have another shape than those of a packed cross-attention.
    pub fn check(&self, packed: Cached) -> Result<()> {
        let theirs = match self {
            Self::Panels(panels) => panels_shape(panels).map(Cached::Panels),
            Self::Rows(_) => None,
        };
        match theirs {
            Some(theirs) if theirs != packed => Err(misfit(theirs, packed)),
            _ => Ok(()),
        }
    }

    /// Returns the bytes that keys and values take.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Rows(rows) => {
                let of = |rows: &Tensor| rows.elem_count() * rows.dtype().size_in_bytes();
                let rows = rows.iter().flat_map(|(key, value)| [key, value]);
                rows.map(of).sum()
            }
            Self::Panels(panels) => panels.iter().map(panel_bytes).sum(),
        }
    }

    /// Replaces the batch by the given sequences, in this order. A sequence may be given several times.
    pub fn take_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        match self {
            Self::Rows(Some((key, value))) => {
                let copied = |rows: &Tensor| of_sequences(rows, sequences);
                (*key, *value) = (copied(key)?, copied(value)?);
            }
            Self::Panels(panels) if !panels.is_empty() => reordered(panels, sequences),
            Self::Rows(None) | Self::Panels(_) => {}
        }
        Ok(())
    }

    /// Appends another batch's sequences.
    ///
    /// # Errors
    /// If the encoder outputs have different lengths, or the states belong to different stacks.
    pub fn join(&mut self, other: Self) -> Result<()> {
        let lengths = match (&*self, &other) {
            (Self::Rows(None), Self::Rows(None)) => return Ok(()),
            (Self::Rows(Some((own, _))), Self::Rows(Some((new, _)))) => [own.dim(1)?, new.dim(1)?],
            (Self::Panels(own), Self::Panels(new))
                if panels_shape(own).map(|of| of.sequence)
                    == panels_shape(new).map(|of| of.sequence) =>
            {
                let length = |of: &[KeyValuePanels]| of.first().map_or(0, |of| of.positions().end);
                [length(own), length(new)]
            }
            _ => return different_stacks(),
        };
        if lengths[0] != lengths[1] {
            bail!(
                "the caches hold encoder outputs of {} and {} positions; only caches of equal ones can join",
                lengths[0],
                lengths[1]
            );
        }
        match (self, other) {
            (Self::Rows(Some((key, value))), Self::Rows(Some((new_key, new_value)))) => {
                *key = Tensor::cat(&[&*key, &new_key], 0)?;
                *value = Tensor::cat(&[&*value, &new_value], 0)?;
            }
            (Self::Panels(own), Self::Panels(new)) => own.extend(new),
            _ => {}
        }
        Ok(())
    }

    /// Returns the keys and values of an encoder output with `keys` positions for a batch. `project` computes them the
    /// first time.
    ///
    /// # Errors
    /// If the cached ones belong to another encoder output, or the cross-attention is packed.
    pub fn rows(
        &mut self,
        (batch, keys): (usize, usize),
        project: impl FnOnce() -> Result<(Tensor, Tensor)>,
    ) -> Result<(Tensor, Tensor)> {
        let Self::Rows(rows) = self else {
            return wrong_stack();
        };
        if let Some((key, value)) = rows {
            let (known_batch, known, _) = key.dims3()?;
            if (known_batch, known) != (batch, keys) {
                bail!(
                    "encoder_hidden_states: has {batch} sequences of {keys} positions, but the cache holds {known_batch} of {known}; reset the cache, or make another with new_cache"
                );
            }
            return Ok((key.clone(), value.clone()));
        }
        let (key, value) = project()?;
        let kept = (without_graph(&key), without_graph(&value));
        Ok(rows.insert(kept).clone())
    }

    /// Returns the keys and values of an encoder output with `keys` positions, for a packed cross-attention. `project`
    /// computes them the first time.
    ///
    /// # Errors
    /// If the cached ones belong to an encoder output with another length, or the cross-attention is not packed.
    pub fn panels(
        &mut self,
        shape: CacheShape,
        keys: usize,
        project: impl FnOnce() -> Result<Vec<KeyValuePanels>>,
    ) -> Result<&[KeyValuePanels]> {
        let Self::Panels(panels) = self else {
            return wrong_stack();
        };
        if panels_shape(panels) != Some(shape) {
            *panels = project()?;
        }
        let known = panels.first().map_or(keys, |first| first.positions().end);
        if known != keys {
            bail!(
                "encoder_hidden_states: has {keys} positions, but the cache holds an encoder output with {known}; reset the cache, or make another with new_cache"
            );
        }
        Ok(panels)
    }
}
