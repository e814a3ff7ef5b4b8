//! One packed layer's keys and values of earlier positions.

use candle_blocks_kernels::attention::{KeyValuePanels, OperandFormat, PanelShape};
use candle_blocks_kernels::memory::LargePages;
use candle_core::{Result, bail};
use half::bf16;

use super::key_value_rows::KeyValueRows;
use super::latents::LatentRows;

/// What a layer's own positions leave in a cache, and its shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cached {
    /// Keys and values.
    Panels(PanelShape),
    /// Latents with their shared keys, as rows of one head.
    Latents(PanelShape),
}

/// Which sequences of a batch a cache can go on with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Reordering {
    /// Some of them, in the order of the batch.
    #[default]
    Drops,
    /// Any, in any order and several times. Panels cannot: the keys and values are kept as rows.
    Copies,
}

/// A layer's keys and values, to which those of new positions are appended.
pub(super) enum OwnKeys<'a> {
    Panels(&'a mut KeyValuePanels),
    Rows(&'a mut KeyValueRows),
}

/// One layer's keys and values.
#[derive(Debug, Default)]
pub(crate) struct PackedLayerCache {
    reordering: Reordering,
    own: Option<KeyValuePanels>,
    /// In the place of panels, if the cache copies sequences.
    rows: Option<KeyValueRows>,
    /// In the place of own keys and values, what they are made from.
    latents: Option<LatentRows>,
    /// A window has dropped what queries from this position on do not see, but earlier ones would.
    dropped_behind: usize,
    /// The keys and values of an encoder's output, projected once.
    memory: Option<KeyValuePanels>,
    /// Memory shared by the own keys and values of all layers, which a step reads one after the other.
    pages: LargePages,
}

impl PackedLayerCache {
    /// An empty cache that takes memory of its own keys and values from `pages`.
    pub fn new(pages: &LargePages) -> Self {
        Self {
            pages: pages.clone(),
            ..Self::default()
        }
    }

    /// A copy of its own, with its keys and values in `pages`.
    pub fn copy_in(&self, pages: &LargePages) -> Self {
        let memory = self.memory.as_ref();
        Self {
            reordering: self.reordering,
            rows: self.rows.clone(),
            own: self.own.as_ref().map(|own| own.copy_in(pages)),
            latents: self.latents.clone(),
            dropped_behind: self.dropped_behind,
            memory: memory.map(|memory| memory.copy_in(&LargePages::default())),
            pages: pages.clone(),
        }
    }

    /// Makes an empty cache one that [`Self::take_sequences`] can be called on.
    pub fn copying(&mut self) {
        self.reordering = Reordering::Copies;
    }

    /// Forgets all positions but keeps the allocated memory.
    pub fn reset(&mut self) {
        self.dropped_behind = 0;
        if let Some(own) = &mut self.own {
            own.reset();
        }
        self.truncate(0);
    }

    /// Keeps these sequences of the batch alone, in rising order.
    pub fn keep_sequences(&mut self, sequences: &[usize]) {
        for panels in self.own.iter_mut().chain(&mut self.memory) {
            panels.keep_sequences(sequences);
        }
        if let Some(latents) = &mut self.latents {
            latents.keep_sequences(sequences);
        }
    }

    /// # Errors
    /// If the cache does not copy sequences.
    pub fn check_copying(&self) -> Result<()> {
        match self.reordering {
            Reordering::Copies => Ok(()),
            Reordering::Drops => bail!("the cache keeps sequences in the order of the batch"),
        }
    }

    /// Goes on with copies of these sequences of a batch of this size. The encoder's output that they attend to is then that
    /// of the sequences `of_memory`, in rising order, or is projected again at the next call.
    pub fn take_sequences(
        &mut self,
        sequences: &[usize],
        (of_memory, batch): (Option<&[usize]>, usize),
    ) {
        if let Some(rows) = &mut self.rows {
            rows.take_sequences(sequences);
        }
        if let Some(latents) = &mut self.latents {
            latents.keep_sequences(sequences);
        }
        match (of_memory, &mut self.memory) {
            (Some(of), Some(memory)) if of.len() < batch => memory.keep_sequences(of),
            (Some(_), _) => {}
            (None, memory) => *memory = None,
        }
    }

    /// Whether a window has dropped positions that are needed again behind the first `seen`.
    pub fn lacks(&self, seen: usize) -> bool {
        let own = self.own.as_ref();
        own.is_some_and(|own| own.positions().start > 0) && seen < self.dropped_behind
    }

    /// Forgets all but the first `seen` positions, whatever a window has dropped of them.
    pub fn truncate(&mut self, seen: usize) {
        if seen == 0 {
            // Another prompt may attend to another encoder's output.
            self.memory = None;
        }
        if let Some(own) = &mut self.own {
            own.truncate(seen);
        }
        if let Some(rows) = &mut self.rows {
            rows.truncate(seen);
        }
        if let Some(latents) = &mut self.latents {
            latents.truncate(seen);
        }
    }

    /// Gives back what was allocated for another batch: its blocks do not fit, and a mapping that others are taken from
    /// keeps the pages of those that are dropped.
    pub fn forget_memory(&mut self, pages: &LargePages) {
        (self.own, self.rows, self.latents) = (None, None, None);
        self.pages = pages.clone();
    }

    /// # Errors
    /// If the cached keys of the layer's own positions, or of an encoder's, have another shape.
    pub fn check(&self, own: Cached, memory: Option<Cached>) -> Result<()> {
        let there = |panels: &Option<KeyValuePanels>| {
            let panels = panels.as_ref()?;
            (panels.positions().end > 0).then(|| Cached::Panels(panels.shape()))
        };
        let rows = self.rows.as_ref().filter(|rows| rows.positions() > 0);
        let rows = rows.map(|rows| Cached::Panels(rows.shape()));
        let latents = self.latents.as_ref().filter(|rows| rows.positions() > 0);
        let latents = latents.map(|rows| Cached::Latents(rows.shape()));
        match (
            there(&self.own).or(rows).or(latents),
            there(&self.memory),
            memory,
        ) {
            (Some(theirs), ..) if theirs != own => Err(misfit(theirs, own)),
            (_, Some(theirs), Some(memory)) if theirs != memory => Err(misfit(theirs, memory)),
            _ => Ok(()),
        }
    }

    /// The size in bytes of the keys and values.
    pub fn bytes(&self) -> usize {
        let of_panels = |panels: &KeyValuePanels| {
            let shape = panels.shape();
            let numbers = 2 * shape.batch * shape.n_kv_heads * shape.head_dim;
            panels.positions().len() * numbers * number_size(shape.stored)
        };
        let panels = self.own.iter().chain(&self.memory).map(of_panels);
        let latents = self.latents.iter().map(LatentRows::bytes);
        let rows = self.rows.iter().map(KeyValueRows::bytes);
        panels.chain(latents).chain(rows).sum()
    }

    /// The latents, to which those of new positions are appended. Those of another shape are forgotten.
    pub(super) fn latents(&mut self, shape: PanelShape) -> &mut LatentRows {
        self.latents.take_if(|latents| latents.shape() != shape);
        self.latents.get_or_insert_with(|| LatentRows::new(shape))
    }

    /// The keys and values of `seen` positions, to which those of new ones are appended; with a window, without those
    /// that the new queries do not see. Keys and values of another shape are forgotten.
    pub(super) fn own(
        &mut self,
        shape: PanelShape,
        seen: usize,
        window: Option<usize>,
    ) -> OwnKeys<'_> {
        if self.reordering == Reordering::Copies {
            self.rows.take_if(|rows| rows.shape() != shape);
            let rows = self.rows.get_or_insert_with(|| KeyValueRows::new(shape));
            return OwnKeys::Rows(rows);
        }
        self.own.take_if(|own| own.shape() != shape);
        let pages = &self.pages;
        let own = self
            .own
            .get_or_insert_with(|| KeyValuePanels::new_in(shape, pages));
        if let Some(window) = window {
            own.drop_before(seen.saturating_sub(window - 1));
            self.dropped_behind = seen;
        }
        OwnKeys::Panels(own)
    }

    /// The number of positions of which the layer had own keys and values.
    pub fn end(&self) -> usize {
        let rows = self.rows.as_ref().map_or(0, KeyValueRows::positions);
        self.own.as_ref().map_or(rows, |own| own.positions().end)
    }

    /// Keys and values of an encoder's output of `keys` positions, which `project` makes where they are not known.
    ///
    /// # Errors
    /// If those that are known are of an output of another length.
    pub fn memory(
        &mut self,
        shape: PanelShape,
        keys: usize,
        project: impl FnOnce() -> Result<KeyValuePanels>,
    ) -> Result<&KeyValuePanels> {
        self.memory.take_if(|memory| memory.shape() != shape);
        let memory = match self.memory.take() {
            Some(known) => known,
            None => project()?,
        };
        let memory = self.memory.insert(memory);
        let known = memory.positions().end;
        if known != keys {
            bail!(
                "encoder_hidden_states: {keys} positions, but the cache is of an output of {known}; reset it, or make another with new_cache"
            );
        }
        Ok(memory)
    }
}

/// Bytes of a number in this format.
fn number_size(stored: OperandFormat) -> usize {
    match stored {
        OperandFormat::F32 => size_of::<f32>(),
        OperandFormat::Bf16 => size_of::<bf16>(),
    }
}

fn misfit(theirs: Cached, ours: Cached) -> candle_core::Error {
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
        "the cache is of {}, and this attention has {}; make another with new_cache",
        words(theirs),
        words(ours)
    ))
}
