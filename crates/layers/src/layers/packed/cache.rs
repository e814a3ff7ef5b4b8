//! The key/value cache of one packed layer.

use candle_blocks_kernels::attention::{KeyValuePanels, OperandFormat, PanelShape};
use candle_blocks_kernels::memory::LargePages;
use candle_core::{Result, bail};
use half::bf16;

use super::key_value_rows::KeyValueRows;
use super::latents::LatentRows;

/// The kind and shape of the rows in a layer's cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cached {
    /// Keys and values.
    Panels(PanelShape),
    /// Latents with shared keys, as rows of one head.
    Latents(PanelShape),
}

/// The ways in which a cache can change its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Reordering {
    /// Drops sequences, and keeps the others in order.
    #[default]
    Drops,
    /// Copies sequences in any order, also several times. Panels cannot do this, so keys and values are kept as rows.
    Copies,
}

/// A layer's keys and values, to which new positions are appended.
pub(super) enum OwnKeys<'a> {
    Panels(&'a mut KeyValuePanels),
    Rows(&'a mut KeyValueRows),
}

/// The keys and values of one layer.
#[derive(Debug, Default)]
pub(crate) struct PackedLayerCache {
    reordering: Reordering,
    own: Option<KeyValuePanels>,
    /// Replaces panels if the cache copies sequences.
    rows: Option<KeyValueRows>,
    /// Replaces keys and values in latent attention.
    latents: Option<LatentRows>,
    /// The first position whose query needs none of the rows that a window has dropped.
    first_complete: usize,
    /// The keys and values of the encoder output, projected once.
    encoder: Option<KeyValuePanels>,
    /// Pages for the keys and values of all layers. A step reads one layer after the other.
    pages: LargePages,
}

impl PackedLayerCache {
    /// Creates an empty cache whose keys and values are allocated from `pages`.
    pub fn new(pages: &LargePages) -> Self {
        Self {
            pages: pages.clone(),
            ..Self::default()
        }
    }

    /// Returns an independent copy, with keys and values in `pages`.
    pub fn copy_in(&self, pages: &LargePages) -> Self {
        let encoder = self.encoder.as_ref();
        Self {
            reordering: self.reordering,
            rows: self.rows.clone(),
            own: self.own.as_ref().map(|own| own.copy_in(pages)),
            latents: self.latents.clone(),
            first_complete: self.first_complete,
            encoder: encoder.map(|encoder| encoder.copy_in(&LargePages::default())),
            pages: pages.clone(),
        }
    }

    /// Prepares an empty cache for [`Self::take_sequences`].
    pub fn copying(&mut self) {
        self.reordering = Reordering::Copies;
    }

    /// Removes all positions and keeps the allocated memory.
    pub fn reset(&mut self) {
        self.first_complete = 0;
        if let Some(own) = &mut self.own {
            own.reset();
        }
        self.truncate(0);
    }

    /// Keeps only the given sequences of the batch, which must rise.
    pub fn keep_sequences(&mut self, sequences: &[usize]) {
        for panels in self.own.iter_mut().chain(&mut self.encoder) {
            panels.keep_sequences(sequences);
        }
        if let Some(latents) = &mut self.latents {
            latents.keep_sequences(sequences);
        }
    }

    /// # Errors
    /// If the cache was not prepared by [`Self::copying`].
    pub fn check_copying(&self) -> Result<()> {
        match self.reordering {
            Reordering::Copies => Ok(()),
            Reordering::Drops => {
                bail!("the cache cannot reorder sequences; prepare it with copying")
            }
        }
    }

    /// Replaces the batch by copies of the given sequences. The encoder output is taken from the sequences
    /// `encoder_rows`, which must rise; without them it is projected again in the next call.
    pub fn take_sequences(
        &mut self,
        sequences: &[usize],
        encoder_rows: Option<&[usize]>,
        batch: usize,
    ) {
        if let Some(rows) = &mut self.rows {
            rows.take_sequences(sequences);
        }
        if let Some(latents) = &mut self.latents {
            latents.keep_sequences(sequences);
        }
        match (encoder_rows, &mut self.encoder) {
            (Some(of), Some(encoder)) if of.len() < batch => encoder.keep_sequences(of),
            (Some(_), _) => {}
            (None, encoder) => *encoder = None,
        }
    }

    /// Returns true if a window has dropped positions that are needed again after the first `seen` positions.
    pub fn lacks(&self, seen: usize) -> bool {
        let own = self.own.as_ref();
        own.is_some_and(|own| own.positions().start > 0) && seen < self.first_complete
    }

    /// Removes all but the first `seen` positions, also if a window has dropped some of these.
    pub fn truncate(&mut self, seen: usize) {
        if seen == 0 {
            // Another prompt may attend to another encoder output.
            self.encoder = None;
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

    /// Frees the memory allocated for another batch. Its blocks do not fit, and a mapping shared with others would
    /// keep the pages of dropped blocks.
    pub fn forget_memory(&mut self, pages: &LargePages) {
        (self.own, self.rows, self.latents) = (None, None, None);
        self.pages = pages.clone();
    }

    /// # Errors
    /// If cached keys have another shape, for the layer's own positions or for the encoder output.
    pub fn check(&self, own: Cached, encoder: Option<Cached>) -> Result<()> {
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
            there(&self.encoder),
            encoder,
        ) {
            (Some(theirs), ..) if theirs != own => Err(misfit(theirs, own)),
            (_, Some(theirs), Some(encoder)) if theirs != encoder => Err(misfit(theirs, encoder)),
            _ => Ok(()),
        }
    }

    /// Returns the size of the keys and values in bytes.
    pub fn bytes(&self) -> usize {
        let of_panels = |panels: &KeyValuePanels| {
            let shape = panels.shape();
            let numbers = 2 * shape.batch * shape.n_kv_heads * shape.head_dim;
            panels.positions().len() * numbers * number_size(shape.stored)
        };
        let panels = self.own.iter().chain(&self.encoder).map(of_panels);
        let latents = self.latents.iter().map(LatentRows::bytes);
        let rows = self.rows.iter().map(KeyValueRows::bytes);
        panels.chain(latents).chain(rows).sum()
    }

    /// Returns the latents, to which new positions are appended. Latents with another shape are dropped.
    pub(super) fn latents(&mut self, shape: PanelShape) -> &mut LatentRows {
        self.latents.take_if(|latents| latents.shape() != shape);
        self.latents.get_or_insert_with(|| LatentRows::new(shape))
    }

    /// Returns the keys and values of `seen` positions, to which new positions are appended. With a window, positions
    /// that the new queries do not see are dropped. Keys and values with another shape are dropped.
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
            self.first_complete = seen;
        }
        OwnKeys::Panels(own)
    }

    /// Returns the number of positions whose keys and values the layer has computed.
    pub fn end(&self) -> usize {
        let rows = self.rows.as_ref().map_or(0, KeyValueRows::positions);
        self.own.as_ref().map_or(rows, |own| own.positions().end)
    }

    /// Returns the keys and values of an encoder output with `keys` positions. `project` computes them the first
    /// time.
    ///
    /// # Errors
    /// If the cached ones belong to an encoder output with another length.
    pub fn encoder(
        &mut self,
        shape: PanelShape,
        keys: usize,
        project: impl FnOnce() -> Result<KeyValuePanels>,
    ) -> Result<&KeyValuePanels> {
        self.encoder.take_if(|encoder| encoder.shape() != shape);
        let encoder = match self.encoder.take() {
            Some(known) => known,
            None => project()?,
        };
        let encoder = self.encoder.insert(encoder);
        let known = encoder.positions().end;
        if known != keys {
            bail!(
                "encoder_hidden_states: has {keys} positions, but the cache holds an encoder output with {known}; reset the cache, or make another with new_cache"
            );
        }
        Ok(encoder)
    }
}

/// Returns the size of an element in bytes.
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
        "the cache holds {}, but this attention has {}; make another cache with new_cache",
        words(theirs),
        words(ours)
    ))
}
