//! The encoder output's keys and values, which cross-attention projects once.

use candle_blocks_kernels::attention::{KeyValuePanels, PanelShape};
use candle_blocks_kernels::memory::LargePages;
use candle_core::{Result, Tensor, bail};

use super::cached_rows::of_sequences;
use super::panels::{Cached, misfit, panel_bytes};
use super::{without_graph, wrong_stack};

/// The encoder output's keys and values for one cross-attention.
#[derive(Debug)]
pub(crate) enum EncoderState {
    /// Keys and values as tensors.
    Rows(Option<(Tensor, Tensor)>),
    /// Keys and values in the layout that a packed attention reads.
    Panels(Option<KeyValuePanels>),
}

impl EncoderState {
    /// Creates an empty state.
    pub fn new(is_packed: bool) -> Self {
        match is_packed {
            true => Self::Panels(None),
            false => Self::Rows(None),
        }
    }

    /// Returns an independent copy.
    pub fn copied(&self) -> Self {
        match self {
            Self::Rows(rows) => Self::Rows(rows.clone()),
            Self::Panels(panels) => {
                let copy = |panels: &KeyValuePanels| panels.copy_in(&LargePages::default());
                Self::Panels(panels.as_ref().map(copy))
            }
        }
    }

    /// Removes the keys and values.
    pub fn reset(&mut self) {
        match self {
            Self::Rows(rows) => *rows = None,
            Self::Panels(panels) => *panels = None,
        }
    }

    /// # Errors
    /// If cached keys have another shape than those of a packed cross-attention.
    pub fn check(&self, packed: Cached) -> Result<()> {
        match self {
            Self::Panels(Some(panels)) if panels.positions().end > 0 => {
                let theirs = Cached::Panels(panels.shape());
                match theirs == packed {
                    true => Ok(()),
                    false => Err(misfit(theirs, packed)),
                }
            }
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
            Self::Panels(panels) => panels.as_ref().map_or(0, panel_bytes),
        }
    }

    /// Keeps the given sequences, which rise.
    pub fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        match self {
            Self::Rows(_) => self.copy_sequences(sequences),
            Self::Panels(panels) => {
                if let Some(panels) = panels {
                    panels.keep_sequences(sequences);
                }
                Ok(())
            }
        }
    }

    /// Replaces the batch by copies of the given sequences, in any order. Panels are removed, so the next call projects
    /// them again.
    pub fn copy_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        match self {
            Self::Rows(Some((key, value))) => {
                let copied = |rows: &Tensor| of_sequences(rows, sequences);
                (*key, *value) = (copied(key)?, copied(value)?);
            }
            Self::Rows(None) => {}
            Self::Panels(panels) => *panels = None,
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
        shape: PanelShape,
        keys: usize,
        project: impl FnOnce() -> Result<KeyValuePanels>,
    ) -> Result<&KeyValuePanels> {
        let Self::Panels(panels) = self else {
            return wrong_stack();
        };
        panels.take_if(|panels| panels.shape() != shape);
        let panels = match panels.take() {
            Some(known) => panels.insert(known),
            None => panels.insert(project()?),
        };
        let known = panels.positions().end;
        if known != keys {
            bail!(
                "encoder_hidden_states: has {keys} positions, but the cache holds an encoder output with {known}; reset the cache, or make another with new_cache"
            );
        }
        Ok(panels)
    }
}
