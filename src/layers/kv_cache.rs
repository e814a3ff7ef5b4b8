//! The key/value cache, with which decoding computes each position only once.

use std::sync::Arc;

use candle_blocks_kernels::memory::LargePages;
use candle_core::{Result, Tensor, bail};

use super::cached_rows::{CachedRows, of_sequences};
use super::ledger::Ledger;
use super::marks::Marks;
use crate::layers::packed::{PackedAttention, PackedLayerCache};

/// The key/value cache of a whole stack, created by [`Stack::new_cache`](crate::Stack::new_cache).
///
/// It remembers the keys, values and padding mask of the positions seen so far, without their graph. New ones are written
/// after the earlier ones, in memory that doubles where its room ends; those of a packed stack in the layout that attention
/// reads. With a sliding window, positions that no later query can see are dropped. Latent attention keeps what keys and
/// values are made from instead, of every position. A clone is independent, so several continuations can start from one
/// prompt.
#[derive(Debug)]
pub struct KvCache {
    pub(super) layers: Vec<LayerCache>,
    pub(super) ledger: Ledger,
}

/// One layer's keys and values.
#[derive(Debug)]
pub(super) enum LayerCache {
    Tensors(TensorCache),
    Packed(Box<PackedLayerCache>),
}

/// The caches that a layer reads and writes.
pub(crate) struct LayerCaches<'a> {
    layer: &'a mut LayerCache,
    /// The cache of the earlier layer whose keys and values a packed layer's queries attend to, if they do.
    shared: Option<&'a mut LayerCache>,
}

impl LayerCaches<'_> {
    /// The layer's own cache, of a layer that is not packed.
    pub fn tensors(&mut self) -> Result<&mut TensorCache> {
        match self.layer {
            LayerCache::Tensors(cache) => Ok(cache),
            LayerCache::Packed(_) => other_stack(),
        }
    }

    /// The cache of a packed layer: its own, or the earlier layer's of which it reads keys and values.
    pub fn packed(&mut self, is_shared: bool) -> Result<&mut PackedLayerCache> {
        let cache = match &mut self.shared {
            Some(shared) if is_shared => shared,
            _ => &mut *self.layer,
        };
        match cache {
            LayerCache::Packed(cache) => Ok(cache),
            LayerCache::Tensors(_) => other_stack(),
        }
    }
}

fn other_stack<T>() -> Result<T> {
    bail!("the cache is another stack's: of two, one is packed; make one with new_cache")
}

impl LayerCache {
    /// # Errors
    /// If it is of a layer with other heads than these attentions, of another number of sequences, or of a layer that is
    /// packed where this one is not.
    pub fn check(
        &self,
        (own, memory): (Option<Arc<PackedAttention>>, Option<Arc<PackedAttention>>),
        batch: usize,
    ) -> Result<()> {
        match (self, own) {
            (Self::Tensors(_), None) => Ok(()),
            (Self::Packed(cache), Some(own)) => {
                let memory = memory.map(|memory| memory.cached(batch));
                cache.check(own.cached(batch), memory)
            }
            _ => other_stack(),
        }
    }
}

impl Clone for KvCache {
    fn clone(&self) -> Self {
        let pages = LargePages::default();
        let copy = |layer: &LayerCache| match layer {
            LayerCache::Tensors(cache) => LayerCache::Tensors(cache.clone()),
            LayerCache::Packed(cache) => LayerCache::Packed(Box::new(cache.copy_in(&pages))),
        };
        Self {
            layers: self.layers.iter().map(copy).collect(),
            ledger: self.ledger.clone(),
        }
    }
}

impl KvCache {
    pub(super) fn new(n_layers: usize, is_packed: bool) -> Self {
        // Shared by all layers, which a step reads one after the other.
        let pages = LargePages::default();
        let layer = |_| match is_packed {
            true => LayerCache::Packed(Box::new(PackedLayerCache::new(&pages))),
            false => LayerCache::Tensors(TensorCache::default()),
        };
        Self {
            layers: (0..n_layers).map(layer).collect(),
            ledger: Ledger::default(),
        }
    }

    /// Makes an empty cache one that [`Self::take_sequences`] can be called on.
    pub(crate) fn copying(mut self) -> Self {
        for layer in &mut self.layers {
            if let LayerCache::Packed(cache) = layer {
                cache.copying();
            }
        }
        self
    }

    /// The number of positions seen so far.
    pub fn seen(&self) -> usize {
        self.ledger.seen()
    }

    /// The size in bytes of the keys and values of the positions seen, of an encoder's output too; of latent attention, of what
    /// these are made from. The room for more beside them is not counted.
    pub fn bytes(&self) -> usize {
        let bytes = |layer: &LayerCache| match layer {
            LayerCache::Tensors(cache) => cache.bytes(),
            LayerCache::Packed(cache) => cache.bytes(),
        };
        self.layers.iter().map(bytes).sum()
    }

    /// Forgets all positions. A packed stack's cache keeps the allocated memory for the next sequences, which should have the
    /// same batch size.
    pub fn reset(&mut self) {
        self.ledger = Ledger::default();
        for layer in &mut self.layers {
            match layer {
                LayerCache::Tensors(cache) => *cache = TensorCache::default(),
                LayerCache::Packed(cache) => cache.reset(),
            }
        }
    }

    /// Goes on with these sequences of the batch alone, in this order, which is that of the batch.
    ///
    /// # Errors
    /// If one is not in the batch, or they are in another order. Nothing is dropped then.
    pub fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        self.ledger.keep_sequences(sequences)?;
        self.layers.iter_mut().try_for_each(|layer| match layer {
            LayerCache::Tensors(cache) => cache.take_sequences(sequences, Some(sequences)),
            LayerCache::Packed(cache) => {
                cache.keep_sequences(sequences);
                Ok(())
            }
        })
    }

    /// Goes on with copies of these sequences of the batch, in this order. The encoder's output that they attend to is then
    /// that of the sequences `of_memory`, in rising order, which may be fewer moves.
    ///
    /// # Errors
    /// If one is not in the batch, or a packed stack's cache was not made for it by [`Self::copying`].
    pub(crate) fn take_sequences(
        &mut self,
        sequences: &[usize],
        of_memory: Option<&[usize]>,
    ) -> Result<()> {
        for layer in &self.layers {
            if let LayerCache::Packed(cache) = layer {
                cache.check_copying()?;
            }
        }
        let batch = self.ledger.batch();
        self.ledger.take_sequences(sequences)?;
        let is_same = of_memory.is_some_and(|of| of.len() == batch);
        let moved = Some(of_memory.unwrap_or(sequences)).filter(|_| !is_same);
        self.layers.iter_mut().try_for_each(|layer| match layer {
            LayerCache::Tensors(cache) => cache.take_sequences(sequences, moved),
            LayerCache::Packed(cache) => {
                cache.take_sequences(sequences, (of_memory, batch));
                Ok(())
            }
        })
    }

    /// Forgets all but the first `seen` positions, for example when a speculative draft is rejected; with 0, also the keys
    /// and values of an encoder's output. The allocated memory is kept.
    ///
    /// # Errors
    /// If a sliding window has already dropped positions that are needed again: with a window, only the positions of the
    /// last call that was not refused can be taken back. Nothing is forgotten then.
    pub fn truncate(&mut self, seen: usize) -> Result<()> {
        let lacks = |layer: &LayerCache| match layer {
            LayerCache::Tensors(cache) => cache.lacks(seen),
            LayerCache::Packed(cache) => cache.lacks(seen),
        };
        if self.layers.iter().any(lacks) {
            bail!(
                "the cache cannot go back to {seen} of {} positions: a sliding window has dropped earlier ones",
                self.seen()
            );
        }
        self.ledger.truncate(seen)?;
        self.forget_from(seen);
        Ok(())
    }

    fn forget_from(&mut self, seen: usize) {
        for layer in &mut self.layers {
            match layer {
                LayerCache::Tensors(cache) => cache.truncate(seen),
                LayerCache::Packed(cache) => cache.truncate(seen),
            }
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
            let pages = LargePages::default();
            for layer in &mut self.layers {
                if let LayerCache::Packed(cache) = layer {
                    cache.forget_memory(&pages);
                }
            }
        }
        Ok(keep)
    }

    /// The caches of a layer, and of the earlier one whose keys and values it reads.
    pub(super) fn of_layer(&mut self, layer: usize, shared: Option<usize>) -> LayerCaches<'_> {
        let (before, from) = self.layers.split_at_mut(layer);
        LayerCaches {
            layer: &mut from[0],
            shared: shared.map(|of| &mut before[of]),
        }
    }

    /// Restores the state from before a call that failed, whichever layer it had reached.
    pub(super) fn undo(&mut self, before: Ledger) {
        let seen = before.seen();
        self.ledger = before;
        self.forget_from(seen);
    }
}

/// What a cached pass keeps or returns. candle has no `no_grad`: of variables, each step would keep the graph of all
/// steps before it, in memory that grows with the square of their number.
pub(super) fn without_graph(tensor: &Tensor) -> Tensor {
    tensor.detach()
}

/// One attention's keys and values, `[batch, kept, n_kv_heads · head_dim]`, or the latents and shared keys that these are made
/// from, as keys and values of one head.
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorCache {
    n_kv_heads: usize,
    kept: Option<CachedRows>,
    /// Positions appended so far, dropped ones included.
    appended: usize,
    /// A window has dropped what queries from this position on do not see, but earlier ones would.
    dropped_behind: usize,
    /// Keys and values of an encoder's output, projected once.
    memory: Option<(Tensor, Tensor)>,
}

impl TensorCache {
    /// Appends new keys and values; returns all that the new queries may see, where they are kept. With a window of `w`,
    /// the oldest new query sees `w - 1` earlier keys, and older ones are dropped.
    ///
    /// # Errors
    /// If they are of another batch, type or width than those that are there, which stay.
    pub fn append(
        &mut self,
        (key, value): (&Tensor, &Tensor),
        n_kv_heads: usize,
        window: Option<usize>,
    ) -> Result<(Tensor, Tensor)> {
        let kept = match &mut self.kept {
            None => self.kept.insert(CachedRows::of([key, value])?),
            Some(kept) => {
                let (old, _) = kept.views()?;
                let (batch, _, width) = old.dims3()?;
                let fits = (batch, key.dim(1)?, width) == key.dims3()?
                    && n_kv_heads == self.n_kv_heads
                    && old.dtype() == key.dtype();
                if !fits {
                    bail!(
                        "the cache is of a batch of {batch} with {} key/value heads of {} in {:?}, the new keys are {:?} in {n_kv_heads} heads in {:?}; make another with new_cache",
                        self.n_kv_heads,
                        width / self.n_kv_heads,
                        old.dtype(),
                        key.dims(),
                        key.dtype()
                    );
                }
                let keep = window.map_or(kept.len(), |w| kept.len().min(w - 1));
                if window.is_some() {
                    self.dropped_behind = self.appended;
                }
                kept.append([key, value], keep)?;
                kept
            }
        };
        self.appended += key.dim(1)?;
        self.n_kv_heads = n_kv_heads;
        kept.views()
    }

    fn bytes(&self) -> usize {
        let of = |rows: &Tensor| rows.elem_count() * rows.dtype().size_in_bytes();
        let memory = self.memory.iter().flat_map(|(key, value)| [key, value]);
        memory.map(of).sum::<usize>() + self.kept.as_ref().map_or(0, CachedRows::bytes)
    }

    /// Whether a window has dropped positions that are needed again behind the first `seen`.
    fn lacks(&self, seen: usize) -> bool {
        let kept = self.kept.as_ref().map_or(0, CachedRows::len);
        kept < self.appended && seen < self.dropped_behind
    }

    /// Forgets the positions from `seen` on; with 0, an encoder's output too.
    fn truncate(&mut self, seen: usize) {
        if seen == 0 {
            self.memory = None;
        }
        match &mut self.kept {
            Some(kept) if seen > 0 => kept.forget_last(self.appended.saturating_sub(seen)),
            _ => self.kept = None,
        }
        self.appended = self.appended.min(seen);
    }

    fn take_sequences(&mut self, sequences: &[usize], of_memory: Option<&[usize]>) -> Result<()> {
        if let (Some((key, value)), Some(of)) = (&mut self.memory, of_memory) {
            (*key, *value) = (of_sequences(key, of)?, of_sequences(value, of)?);
        }
        match &mut self.kept {
            Some(rows) => rows.keep_sequences(sequences),
            None => Ok(()),
        }
    }

    /// Keeps the keys and values of an encoder's output, and returns them.
    pub fn keep_memory(&mut self, (key, value): (Tensor, Tensor)) -> (Tensor, Tensor) {
        let kept = (without_graph(&key), without_graph(&value));
        self.memory.insert(kept).clone()
    }

    /// Keys and values of an encoder's output of so many sequences and positions, if they are known.
    ///
    /// # Errors
    /// If those that are known are of another output.
    pub fn known_memory(&self, batch: usize, keys: usize) -> Result<Option<&(Tensor, Tensor)>> {
        if let Some((key, _)) = &self.memory {
            let (known_batch, known, _) = key.dims3()?;
            if (known_batch, known) != (batch, keys) {
                bail!(
                    "encoder_hidden_states: {batch} of {keys} positions, but the cache is of {known_batch} of {known}; reset it, or make another with new_cache"
                );
            }
        }
        Ok(self.memory.as_ref())
    }
}
