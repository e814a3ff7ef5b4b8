//! The key/value cache, so that decoding computes each position only once.

use std::sync::Arc;

use candle_blocks_kernels::memory::LargePages;
use candle_core::{Result, Tensor, bail};

use super::cached_rows::{CachedRows, of_sequences};
use super::ledger::Ledger;
use super::padding_mask::PaddingMask;
use crate::layers::packed::{PackedAttention, PackedLayerCache};

/// The key/value cache of a whole stack, created by [`Stack::new_cache`](crate::Stack::new_cache).
///
/// The cache holds keys, values and padding mask of the positions seen so far, without their graph. New positions are
/// appended. When the buffer is full, its size doubles. A packed stack caches keys and values in the layout that
/// attention reads. With a sliding window, positions that no later query can see are dropped. Latent attention caches
/// the latents of every position instead of keys and values. A clone is independent, so several continuations can
/// start from one prompt.
#[derive(Debug)]
pub struct KvCache {
    pub(super) layers: Vec<LayerCache>,
    pub(super) ledger: Ledger,
}

/// The keys and values of one layer.
#[derive(Debug)]
pub(super) enum LayerCache {
    Tensors(TensorCache),
    Packed(Box<PackedLayerCache>),
}

/// The caches that a layer reads and writes.
pub(crate) struct LayerCaches<'a> {
    layer: &'a mut LayerCache,
    /// The cache of the earlier layer whose keys and values a packed layer attends to, if it has none of its own.
    shared: Option<&'a mut LayerCache>,
}

impl LayerCaches<'_> {
    /// Returns the cache of a layer that is not packed.
    pub fn tensors(&mut self) -> Result<&mut TensorCache> {
        match self.layer {
            LayerCache::Tensors(cache) => Ok(cache),
            LayerCache::Packed(_) => wrong_stack(),
        }
    }

    /// Returns the cache of a packed layer: its own, or the earlier layer's cache if `is_shared`.
    pub fn packed(&mut self, is_shared: bool) -> Result<&mut PackedLayerCache> {
        let cache = match &mut self.shared {
            Some(shared) if is_shared => shared,
            _ => &mut *self.layer,
        };
        match cache {
            LayerCache::Packed(cache) => Ok(cache),
            LayerCache::Tensors(_) => wrong_stack(),
        }
    }
}

fn wrong_stack<T>() -> Result<T> {
    bail!(
        "the cache belongs to another stack: only one of the two is packed; make a cache with new_cache"
    )
}

impl LayerCache {
    /// # Errors
    /// If the cache has other heads than these attentions, another number of sequences, or only one of the two is
    /// packed.
    pub fn check(
        &self,
        (own, encoder): (Option<Arc<PackedAttention>>, Option<Arc<PackedAttention>>),
        batch: usize,
    ) -> Result<()> {
        match (self, own) {
            (Self::Tensors(_), None) => Ok(()),
            (Self::Packed(cache), Some(own)) => {
                let encoder = encoder.map(|encoder| encoder.cached(batch));
                cache.check(own.cached(batch), encoder)
            }
            _ => wrong_stack(),
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
        // All layers share the pages: a step reads one layer after the other.
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

    /// Prepares an empty cache for [`Self::take_sequences`].
    #[doc(hidden)]
    pub fn copying(mut self) -> Self {
        for layer in &mut self.layers {
            if let LayerCache::Packed(cache) = layer {
                cache.copying();
            }
        }
        self
    }

    /// Returns the number of positions seen so far.
    pub fn seen(&self) -> usize {
        self.ledger.seen()
    }

    /// Returns the size in bytes of the cached keys and values (or latents), with those of the encoder output. Unused
    /// capacity is not counted.
    pub fn bytes(&self) -> usize {
        let bytes = |layer: &LayerCache| match layer {
            LayerCache::Tensors(cache) => cache.bytes(),
            LayerCache::Packed(cache) => cache.bytes(),
        };
        self.layers.iter().map(bytes).sum()
    }

    /// Removes all positions. The cache of a packed stack keeps its memory for the next sequences, which should have
    /// the same batch size.
    pub fn reset(&mut self) {
        self.ledger = Ledger::default();
        for layer in &mut self.layers {
            match layer {
                LayerCache::Tensors(cache) => *cache = TensorCache::default(),
                LayerCache::Packed(cache) => cache.reset(),
            }
        }
    }

    /// Keeps only the given sequences of the batch, in their present order.
    ///
    /// # Errors
    /// If a sequence is not in the batch, or the order differs from the batch's. The cache is then unchanged.
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

    /// Replaces the batch by copies of the given sequences, in this order. The encoder output is taken from the
    /// sequences `encoder_rows`, if given, which rise and may need fewer copies.
    ///
    /// # Errors
    /// If a sequence is not in the batch, or a packed stack's cache was not prepared by [`Self::copying`].
    #[doc(hidden)]
    pub fn take_sequences(
        &mut self,
        sequences: &[usize],
        encoder_rows: Option<&[usize]>,
    ) -> Result<()> {
        for layer in &self.layers {
            if let LayerCache::Packed(cache) = layer {
                cache.check_copying()?;
            }
        }
        let batch = self.ledger.batch();
        self.ledger.take_sequences(sequences)?;
        let is_same = encoder_rows.is_some_and(|of| of.len() == batch);
        let moved = Some(encoder_rows.unwrap_or(sequences)).filter(|_| !is_same);
        self.layers.iter_mut().try_for_each(|layer| match layer {
            LayerCache::Tensors(cache) => cache.take_sequences(sequences, moved),
            LayerCache::Packed(cache) => {
                cache.take_sequences(sequences, encoder_rows, batch);
                Ok(())
            }
        })
    }

    /// Removes all but the first `seen` positions, for example when a speculative draft is rejected. With 0, also
    /// removes the encoder output's keys and values. The cache keeps its memory.
    ///
    /// # Errors
    /// If a sliding window has already dropped positions that would be needed again. With a window, only the
    /// positions of the last successful call can be removed. On error the cache is unchanged.
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

    /// Adds new positions; returns the key mask of all positions, `[batch, all]`.
    ///
    /// # Errors
    /// Same as [`Ledger::extend`].
    pub(super) fn extend(
        &mut self,
        new: Option<&PaddingMask>,
        sizes: (usize, usize),
    ) -> Result<Option<PaddingMask>> {
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

    /// Returns the cache of a layer, and the cache of the earlier layer whose keys and values it reads.
    pub(super) fn of_layer(&mut self, layer: usize, shared: Option<usize>) -> LayerCaches<'_> {
        let (before, from) = self.layers.split_at_mut(layer);
        LayerCaches {
            layer: &mut from[0],
            shared: shared.map(|of| &mut before[of]),
        }
    }

    /// Restores the state from before a failed call, whichever layer the call had reached.
    pub(super) fn undo(&mut self, before: Ledger) {
        let seen = before.seen();
        self.ledger = before;
        self.forget_from(seen);
    }
}

/// Detaches a tensor of a cached pass. candle has no `no_grad`: with variables, each step would keep the graph of all
/// earlier steps, in memory that grows with the square of their number.
pub(super) fn without_graph(tensor: &Tensor) -> Tensor {
    tensor.detach()
}

/// The keys and values of one attention, `[batch, kept, n_kv_heads · head_dim]`. For latent attention, the latents
/// and shared keys as one head.
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorCache {
    n_kv_heads: usize,
    kept: Option<CachedRows>,
    /// The number of positions appended so far, with dropped ones.
    appended: usize,
    /// The first position whose query needs none of the rows that a window has dropped.
    first_complete: usize,
    /// Keys and values of the encoder output, projected once.
    encoder: Option<(Tensor, Tensor)>,
}

impl TensorCache {
    /// Appends new keys and values; returns all rows that the new queries may see. With a window of `w`, the oldest
    /// new query sees `w - 1` earlier keys, and older rows are dropped.
    ///
    /// # Errors
    /// If batch, dtype or width differ from those in the cache. The cache is then unchanged.
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
                        "the cache holds a batch of {batch} with {} key/value heads of {} in {:?}, but the new keys have shape {:?} with {n_kv_heads} heads in {:?}; make another cache with new_cache",
                        self.n_kv_heads,
                        width / self.n_kv_heads,
                        old.dtype(),
                        key.dims(),
                        key.dtype()
                    );
                }
                let keep = window.map_or(kept.len(), |w| kept.len().min(w - 1));
                if window.is_some() {
                    self.first_complete = self.appended;
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
        let encoder = self.encoder.iter().flat_map(|(key, value)| [key, value]);
        encoder.map(of).sum::<usize>() + self.kept.as_ref().map_or(0, CachedRows::bytes)
    }

    /// Returns true if a window has dropped positions that are needed again after the first `seen` positions.
    fn lacks(&self, seen: usize) -> bool {
        let kept = self.kept.as_ref().map_or(0, CachedRows::len);
        kept < self.appended && seen < self.first_complete
    }

    /// Removes the positions from `seen` on. With 0, also removes the encoder output.
    fn truncate(&mut self, seen: usize) {
        if seen == 0 {
            self.encoder = None;
        }
        match &mut self.kept {
            Some(kept) if seen > 0 => kept.forget_last(self.appended.saturating_sub(seen)),
            _ => self.kept = None,
        }
        self.appended = self.appended.min(seen);
    }

    fn take_sequences(
        &mut self,
        sequences: &[usize],
        encoder_rows: Option<&[usize]>,
    ) -> Result<()> {
        if let (Some((key, value)), Some(of)) = (&mut self.encoder, encoder_rows) {
            (*key, *value) = (of_sequences(key, of)?, of_sequences(value, of)?);
        }
        match &mut self.kept {
            Some(rows) => rows.keep_sequences(sequences),
            None => Ok(()),
        }
    }

    /// Caches the keys and values of the encoder output, and returns them.
    pub fn cache_encoder(&mut self, (key, value): (Tensor, Tensor)) -> (Tensor, Tensor) {
        let kept = (without_graph(&key), without_graph(&value));
        self.encoder.insert(kept).clone()
    }

    /// Returns the cached keys and values of an encoder output with this batch and number of positions, if there are
    /// any.
    ///
    /// # Errors
    /// If the cached ones belong to another encoder output.
    pub fn cached_encoder(&self, batch: usize, keys: usize) -> Result<Option<&(Tensor, Tensor)>> {
        if let Some((key, _)) = &self.encoder {
            let (known_batch, known, _) = key.dims3()?;
            if (known_batch, known) != (batch, keys) {
                bail!(
                    "encoder_hidden_states: has {batch} sequences of {keys} positions, but the cache holds {known_batch} of {known}; reset the cache, or make another with new_cache"
                );
            }
        }
        Ok(self.encoder.as_ref())
    }
}
