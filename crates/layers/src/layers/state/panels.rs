//! Keys and values for a packed attention.

use candle_blocks_kernels::attention::{KeyValuePanels, OperandFormat, PanelShape};
use candle_blocks_kernels::memory::LargePages;
use candle_core::Result;
use half::bf16;

use super::key_value_rows::KeyValueRows;
use super::latents::LatentRows;

/// The kind and shape of the rows in a layer's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cached {
    /// Keys and values.
    Panels(PanelShape),
    /// Latents with shared keys, as rows of one head.
    Latents(PanelShape),
}

/// The ways in which a state can change its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Reordering {
    /// Drops sequences, and keeps the others in order.
    #[default]
    Drops,
    /// Copies sequences in any order, also several times. Panels cannot do this, so keys and values are kept as rows.
    Copies,
}

/// A layer's keys and values, to which new positions are appended.
pub(crate) enum OwnKeys<'a> {
    Panels(&'a mut KeyValuePanels),
    Rows(&'a mut KeyValueRows),
}

/// A packed attention's keys and values.
#[derive(Debug, Default)]
pub(crate) struct Panels {
    reordering: Reordering,
    keys: Option<CachedKeys>,
    /// The first position whose query needs none of the rows that a window has dropped.
    first_complete: usize,
    /// Pages for the keys and values of all layers. A step reads one layer after the other.
    pages: LargePages,
}

/// The forms in which keys and values are kept.
#[derive(Debug)]
enum CachedKeys {
    Panels(KeyValuePanels),
    /// Keys and values in a state that copies sequences.
    Rows(KeyValueRows),
    /// Latents, in latent attention.
    Latents(LatentRows),
}

impl CachedKeys {
    /// Returns the positions, without those that a window has dropped.
    fn positions(&self) -> std::ops::Range<usize> {
        match self {
            Self::Panels(panels) => panels.positions(),
            Self::Rows(rows) => 0..rows.positions(),
            Self::Latents(latents) => 0..latents.positions(),
        }
    }

    fn cached(&self) -> Cached {
        match self {
            Self::Panels(panels) => Cached::Panels(panels.shape()),
            Self::Rows(rows) => Cached::Panels(rows.shape()),
            Self::Latents(latents) => Cached::Latents(latents.shape()),
        }
    }
}

impl Panels {
    /// Creates an empty state whose keys and values are allocated from `pages`.
    pub fn new(pages: &LargePages) -> Self {
        Self {
            pages: pages.clone(),
            ..Self::default()
        }
    }

    /// Returns an independent copy, with keys and values in `pages`.
    pub fn copy_in(&self, pages: &LargePages) -> Self {
        let copy = |keys: &CachedKeys| match keys {
            CachedKeys::Panels(panels) => CachedKeys::Panels(panels.copy_in(pages)),
            CachedKeys::Rows(rows) => CachedKeys::Rows(rows.clone()),
            CachedKeys::Latents(latents) => CachedKeys::Latents(latents.clone()),
        };
        Self {
            reordering: self.reordering,
            keys: self.keys.as_ref().map(copy),
            first_complete: self.first_complete,
            pages: pages.clone(),
        }
    }

    /// Prepares an empty state for [`Self::take_sequences`] in any order.
    pub fn copying(&mut self) {
        self.reordering = Reordering::Copies;
    }

    /// Returns true if the state was prepared by [`Self::copying`].
    pub fn copies(&self) -> bool {
        self.reordering == Reordering::Copies
    }

    /// Removes all positions and keeps the allocated memory.
    pub fn reset(&mut self) {
        self.first_complete = 0;
        match &mut self.keys {
            Some(CachedKeys::Panels(panels)) => panels.reset(),
            _ => self.truncate(0),
        }
    }

    /// Replaces the batch by the given sequences, which rise unless [`Self::copies`].
    pub fn take_sequences(&mut self, sequences: &[usize]) {
        match &mut self.keys {
            Some(CachedKeys::Panels(panels)) => panels.keep_sequences(sequences),
            Some(CachedKeys::Rows(rows)) => rows.take_sequences(sequences),
            Some(CachedKeys::Latents(latents)) => latents.keep_sequences(sequences),
            None => {}
        }
    }

    /// Returns true if a window has dropped positions that are needed again after the first `seen` positions.
    pub fn lacks(&self, seen: usize) -> bool {
        let keys = self.keys.as_ref();
        keys.is_some_and(|keys| keys.positions().start > 0) && seen < self.first_complete
    }

    /// Removes all but the first `seen` positions, also if a window has dropped some of these.
    pub fn truncate(&mut self, seen: usize) {
        match &mut self.keys {
            Some(CachedKeys::Panels(panels)) => panels.truncate(seen),
            Some(CachedKeys::Rows(rows)) => rows.truncate(seen),
            Some(CachedKeys::Latents(latents)) => latents.truncate(seen),
            None => {}
        }
    }

    /// Frees the memory allocated for another batch. Its blocks do not fit, and a mapping shared with others would
    /// keep the pages of dropped blocks.
    pub fn forget_memory(&mut self, pages: &LargePages) {
        self.keys = None;
        self.pages = pages.clone();
    }

    /// # Errors
    /// If the cached keys have another shape.
    pub fn check(&self, own: Cached) -> Result<()> {
        let keys = self.keys.as_ref();
        let keys = keys.filter(|keys| keys.positions().end > 0);
        match keys.map(CachedKeys::cached) {
            Some(theirs) if theirs != own => Err(misfit(theirs, own)),
            _ => Ok(()),
        }
    }

    /// Returns the bytes that keys and values take.
    pub fn bytes(&self) -> usize {
        match &self.keys {
            Some(CachedKeys::Panels(panels)) => panel_bytes(panels),
            Some(CachedKeys::Rows(rows)) => rows.bytes(),
            Some(CachedKeys::Latents(latents)) => latents.bytes(),
            None => 0,
        }
    }

    /// Returns the latents, to which new positions are appended. Rows with another shape are dropped.
    pub fn latents(&mut self, shape: PanelShape) -> &mut LatentRows {
        let is_other = |keys: &mut CachedKeys| keys.cached() != Cached::Latents(shape);
        self.keys.take_if(is_other);
        let new = || CachedKeys::Latents(LatentRows::new(shape));
        match self.keys.get_or_insert_with(new) {
            CachedKeys::Latents(latents) => latents,
            _ => unreachable!("other forms were dropped"),
        }
    }

    /// Returns the keys and values of `seen` positions, to which new positions are appended. With a window, positions
    /// that the new queries do not see are dropped. Keys and values with another shape are dropped.
    pub fn own(&mut self, shape: PanelShape, seen: usize, window: Option<usize>) -> OwnKeys<'_> {
        let is_other = |keys: &mut CachedKeys| keys.cached() != Cached::Panels(shape);
        self.keys.take_if(is_other);
        let (reordering, pages) = (self.reordering, &self.pages);
        let new = || match reordering {
            Reordering::Copies => CachedKeys::Rows(KeyValueRows::new(shape)),
            Reordering::Drops => CachedKeys::Panels(KeyValuePanels::new_in(shape, pages)),
        };
        match self.keys.get_or_insert_with(new) {
            CachedKeys::Panels(panels) => {
                if let Some(window) = window {
                    panels.drop_before(seen.saturating_sub(window - 1));
                    self.first_complete = seen;
                }
                OwnKeys::Panels(panels)
            }
            CachedKeys::Rows(rows) => OwnKeys::Rows(rows),
            CachedKeys::Latents(_) => unreachable!("latents were dropped"),
        }
    }

    /// Returns the number of positions whose keys and values the layer has computed.
    pub fn end(&self) -> usize {
        self.keys.as_ref().map_or(0, |keys| keys.positions().end)
    }
}

/// Returns the bytes that keys and values take.
pub(super) fn panel_bytes(panels: &KeyValuePanels) -> usize {
    let shape = panels.shape();
    let elements = 2 * shape.batch * shape.n_kv_heads * shape.head_dim;
    let size = match shape.stored {
        OperandFormat::F32 => size_of::<f32>(),
        OperandFormat::Bf16 => size_of::<bf16>(),
    };
    panels.positions().len() * elements * size
}

pub(super) fn misfit(theirs: Cached, ours: Cached) -> candle_core::Error {
    let words = |cached: Cached| match cached {
        Cached::Panels(shape) => format!(
            "a batch of {} with {} key/value heads of {} in {}",
            shape.batch, shape.n_kv_heads, shape.head_dim, shape.stored
        ),
        Cached::Latents(shape) => format!(
            "a batch of {} with latents of {} in {}",
            shape.batch, shape.head_dim, shape.stored
        ),
    };
    candle_core::Error::msg(format!(
        "the cache holds {}, but this attention has {}; make another cache with new_cache",
        words(theirs),
        words(ours)
    ))
}
