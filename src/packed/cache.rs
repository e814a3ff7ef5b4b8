//! The key/value cache of packed stacks.

use candle_blocks_kernels::attention::{KeyValuePanels, OperandFormat, PanelShape};
use candle_blocks_kernels::memory::LargePages;
use candle_core::{Result, bail};
use half::bf16;

use super::key_value_rows::KeyValueRows;
use super::latents::LatentRows;
use crate::layers::{Ledger, Marks};

/// The key/value cache of a [`PackedStack`](crate::PackedStack), created by
/// [`PackedStack::new_cache`](crate::PackedStack::new_cache).
///
/// Keys and values are stored in the layout that attention reads. New positions are written after the earlier ones, so
/// nothing is copied or repacked. With a sliding window, positions that no later query can see are dropped and their
/// memory is reused. Latent attention keeps what keys and values are made from instead, of every position.
#[derive(Debug)]
pub struct PackedKvCache {
    pub(super) layers: Vec<PackedLayerCache>,
    ledger: Ledger,
}

/// What a layer's own positions leave in a cache, and its shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cached {
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
pub(super) struct PackedLayerCache {
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

/// The caches that a layer reads and writes.
pub(super) struct LayerCaches<'a> {
    pub layer: &'a mut PackedLayerCache,
    /// Of the earlier layer whose keys and values its queries attend to, if they do.
    pub shared: Option<&'a mut PackedLayerCache>,
}

impl LayerCaches<'_> {
    /// Where the keys and values of the layer's own positions are.
    pub fn of_positions(&mut self) -> &mut PackedLayerCache {
        match &mut self.shared {
            Some(shared) => shared,
            None => self.layer,
        }
    }
}

/// A copy of its own, for example to continue one prompt in several ways.
impl Clone for PackedKvCache {
    fn clone(&self) -> Self {
        let pages = LargePages::default();
        let copy = |layer: &PackedLayerCache| PackedLayerCache {
            reordering: layer.reordering,
            rows: layer.rows.clone(),
            own: layer.own.as_ref().map(|own| own.copy_in(&pages)),
            latents: layer.latents.clone(),
            dropped_behind: layer.dropped_behind,
            memory: layer
                .memory
                .as_ref()
                .map(|memory| memory.copy_in(&LargePages::default())),
            pages: pages.clone(),
        };
        Self {
            layers: self.layers.iter().map(copy).collect(),
            ledger: self.ledger.clone(),
        }
    }
}

impl PackedKvCache {
    pub(super) fn new(n_layers: usize) -> Self {
        let pages = LargePages::default();
        let layer = |_| PackedLayerCache {
            pages: pages.clone(),
            ..Default::default()
        };
        Self {
            layers: (0..n_layers).map(layer).collect(),
            ledger: Ledger::default(),
        }
    }

    /// Makes an empty cache one that [`Self::take_sequences`] can be called on.
    pub(crate) fn copying(mut self) -> Self {
        for layer in &mut self.layers {
            layer.reordering = Reordering::Copies;
        }
        self
    }

    /// The number of positions seen so far.
    pub fn seen(&self) -> usize {
        self.ledger.seen()
    }

    /// The size in bytes of the keys and values of the positions seen, of an encoder's output too; of latent attention, of what
    /// these are made from.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(PackedLayerCache::bytes).sum()
    }

    /// Forgets all positions but keeps the allocated memory for the next sequences, which should have the same batch size.
    pub fn reset(&mut self) {
        for layer in &mut self.layers {
            layer.dropped_behind = 0;
            if let Some(own) = &mut layer.own {
                own.reset();
            }
        }
        // Nothing is left that it could refuse to cut.
        let _ = self.forget_from(0);
    }

    /// Goes on with these sequences of the batch alone, in this order, which is that of the batch; the allocated memory is kept.
    ///
    /// # Errors
    /// If one is not in the batch, or they are in another order. Nothing is dropped then.
    pub fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        self.ledger.keep_sequences(sequences)?;
        for layer in &mut self.layers {
            for panels in layer.own.iter_mut().chain(&mut layer.memory) {
                panels.keep_sequences(sequences);
            }
            if let Some(latents) = &mut layer.latents {
                latents.keep_sequences(sequences);
            }
        }
        Ok(())
    }

    /// Goes on with copies of these sequences of the batch, in this order. The encoder's output that they attend to is then
    /// that of the sequences `of_memory`, in rising order, or is projected again at the next call.
    ///
    /// # Errors
    /// If one is not in the batch, or the cache does not copy sequences.
    pub(crate) fn take_sequences(
        &mut self,
        sequences: &[usize],
        of_memory: Option<&[usize]>,
    ) -> Result<()> {
        let copies = |layer: &PackedLayerCache| layer.reordering == Reordering::Copies;
        if !self.layers.iter().all(copies) {
            bail!("the cache keeps sequences in the order of the batch");
        }
        let batch = self.ledger.batch();
        self.ledger.take_sequences(sequences)?;
        for layer in &mut self.layers {
            if let Some(rows) = &mut layer.rows {
                rows.take_sequences(sequences);
            }
            if let Some(latents) = &mut layer.latents {
                latents.keep_sequences(sequences);
            }
            match (of_memory, &mut layer.memory) {
                (Some(of), Some(memory)) if of.len() < batch => memory.keep_sequences(of),
                (Some(_), _) => {}
                (None, memory) => *memory = None,
            }
        }
        Ok(())
    }

    /// Forgets all but the first `seen` positions, for example when a speculative draft is rejected; with 0, also the keys
    /// and values of an encoder's output. The allocated memory is kept.
    ///
    /// # Errors
    /// If a sliding window has already dropped positions that are needed again: with a window, only the positions of the
    /// last call that was not refused can be taken back. Nothing is forgotten then.
    pub fn truncate(&mut self, seen: usize) -> Result<()> {
        let lacks = |layer: &PackedLayerCache| {
            let own = layer.own.as_ref();
            own.is_some_and(|own| own.positions().start > 0) && seen < layer.dropped_behind
        };
        if self.layers.iter().any(lacks) {
            bail!(
                "the cache cannot go back to {seen} of {} positions: a sliding window has dropped earlier ones",
                self.seen()
            );
        }
        self.forget_from(seen)
    }

    /// Forgets all but the first `seen` positions, whatever a window has dropped of them.
    pub(super) fn forget_from(&mut self, seen: usize) -> Result<()> {
        for layer in &mut self.layers {
            if seen == 0 {
                // Another prompt may attend to another encoder's output.
                layer.memory = None;
            }
            if let Some(own) = &mut layer.own {
                own.truncate(seen);
            }
            if let Some(rows) = &mut layer.rows {
                rows.truncate(seen);
            }
            if let Some(latents) = &mut layer.latents {
                latents.truncate(seen);
            }
        }
        self.ledger.truncate(seen)
    }

    /// Gives back what was allocated for another batch: its blocks do not fit, and a mapping that others are taken from
    /// keeps the pages of those that are dropped.
    fn forget_memory(&mut self) {
        let pages = LargePages::default();
        for layer in &mut self.layers {
            (layer.own, layer.rows, layer.latents) = (None, None, None);
            layer.pages = pages.clone();
        }
    }

    /// Takes in new positions; returns the marks of all, `[batch, all]`.
    ///
    /// # Errors
    /// As [`Ledger::extend`].
    pub(super) fn extend(
        &mut self,
        new: Option<&Marks>,
        sizes: (usize, usize),
    ) -> Result<Option<Marks>> {
        let batch = self.ledger.batch();
        let keep = self.ledger.extend(new, sizes)?;
        if batch != self.ledger.batch() {
            self.forget_memory();
        }
        Ok(keep)
    }
}

impl PackedKvCache {
    /// The caches of a layer, and of the earlier one whose keys and values it reads.
    pub(super) fn of_layer(&mut self, layer: usize, shared: Option<usize>) -> LayerCaches<'_> {
        let (before, from) = self.layers.split_at_mut(layer);
        LayerCaches {
            layer: &mut from[0],
            shared: shared.map(|of| &mut before[of]),
        }
    }
}

impl PackedLayerCache {
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

    fn bytes(&self) -> usize {
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
    pub fn latents(&mut self, shape: PanelShape) -> &mut LatentRows {
        self.latents.take_if(|latents| latents.shape() != shape);
        self.latents.get_or_insert_with(|| LatentRows::new(shape))
    }

    /// The keys and values of `seen` positions, to which those of new ones are appended; with a window, without those
    /// that the new queries do not see. Keys and values of another shape are forgotten.
    pub fn own(&mut self, shape: PanelShape, seen: usize, window: Option<usize>) -> OwnKeys<'_> {
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
