//! The key/value cache, with which decoding computes each position only once.

use candle_core::{Result, Tensor, bail};

use super::cached_rows::{CachedRows, of_sequences};
use super::ledger::Ledger;

/// The key/value cache of a whole stack, created by [`Stack::new_cache`](crate::Stack::new_cache).
///
/// It remembers the keys, values and padding mask of the positions seen so far, without their graph. New ones are written
/// behind the earlier ones, in memory that doubles where its room ends. A clone is independent, so several continuations
/// can start from one prompt.
#[derive(Clone, Debug)]
pub struct KvCache {
    pub(super) layers: Vec<LayerCache>,
    pub(super) ledger: Ledger,
}

impl KvCache {
    pub(super) fn new(n_layers: usize) -> Self {
        Self {
            layers: vec![LayerCache::default(); n_layers],
            ledger: Ledger::default(),
        }
    }

    /// The number of positions seen so far.
    pub fn seen(&self) -> usize {
        self.ledger.seen()
    }

    /// The size in bytes of the keys and values of the positions seen, of an encoder's output too; of latent attention, of what
    /// these are made from. The room for more beside them is not counted.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(LayerCache::bytes).sum()
    }

    /// Forgets all positions.
    pub fn reset(&mut self) {
        *self = Self::new(self.layers.len());
    }

    /// Goes on with these sequences of the batch alone, in this order, which is that of the batch.
    ///
    /// # Errors
    /// If one is not in the batch, or they are in another order. Nothing is dropped then.
    pub fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        self.ledger.keep_sequences(sequences)?;
        self.take_rows(sequences, Some(sequences))
    }

    /// Goes on with copies of these sequences of the batch, in this order. The encoder's output that they attend to is then
    /// that of the sequences `of_memory`, which may be fewer moves.
    ///
    /// # Errors
    /// If one is not in the batch.
    pub(crate) fn take_sequences(
        &mut self,
        sequences: &[usize],
        of_memory: Option<&[usize]>,
    ) -> Result<()> {
        let batch = self.ledger.batch();
        self.ledger.take_sequences(sequences)?;
        let is_same = of_memory.is_some_and(|of| of.len() == batch);
        let of_memory = of_memory.unwrap_or(sequences);
        self.take_rows(sequences, Some(of_memory).filter(|_| !is_same))
    }

    fn take_rows(&mut self, sequences: &[usize], of_memory: Option<&[usize]>) -> Result<()> {
        let taken = |layer: &mut LayerCache| layer.take_sequences(sequences, of_memory);
        self.layers.iter_mut().try_for_each(taken)
    }

    /// Restores the state from before a call that failed, whichever layer it had reached.
    pub(super) fn undo(&mut self, before: Ledger) -> Result<()> {
        let seen = before.seen();
        self.ledger = before;
        for layer in &mut self.layers {
            layer.truncate(seen);
            if seen == 0 {
                layer.memory = None;
            }
        }
        Ok(())
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
pub(super) struct LayerCache {
    n_kv_heads: usize,
    kept: Option<CachedRows>,
    /// Positions appended so far, dropped ones included.
    appended: usize,
    /// Keys and values of an encoder's output, projected once.
    memory: Option<(Tensor, Tensor)>,
}

impl LayerCache {
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

    /// Forgets the positions from `seen` on.
    fn truncate(&mut self, seen: usize) {
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
