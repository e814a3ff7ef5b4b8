//! The key/value cache, with which decoding computes each position only once.

use candle_core::{Result, Tensor, bail};

use super::ledger::Ledger;

/// The key/value cache of a whole stack, created by [`Stack::new_cache`](crate::Stack::new_cache).
///
/// It remembers the keys, values and padding mask of the positions seen so far, without their graph. A clone is
/// independent, so several continuations can start from one prompt.
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

    /// Forgets all positions.
    pub fn reset(&mut self) {
        *self = Self::new(self.layers.len());
    }

    /// Restores the state from before a call that failed, whichever layer it had reached.
    pub(super) fn undo(&mut self, before: Ledger) -> Result<()> {
        let seen = before.seen();
        self.ledger = before;
        for layer in &mut self.layers {
            layer.truncate(seen)?;
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

/// One attention's keys and values, `[batch, kept, n_kv_heads · head_dim]`.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerCache {
    n_kv_heads: usize,
    kept: Option<(Tensor, Tensor)>,
    /// Positions appended so far, dropped ones included.
    appended: usize,
    /// Keys and values of an encoder's output, projected once.
    memory: Option<(Tensor, Tensor)>,
}

impl LayerCache {
    /// Appends new keys and values; returns all that the new queries may see. With a window of `w`,
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
        let all = match &self.kept {
            None => (key.clone(), value.clone()),
            Some((old_key, old_value)) => {
                let (batch, kept, width) = old_key.dims3()?;
                let fits = (batch, key.dim(1)?, width) == key.dims3()?
                    && n_kv_heads == self.n_kv_heads
                    && old_key.dtype() == key.dtype();
                if !fits {
                    bail!(
                        "the cache is of a batch of {batch} with {} key/value heads of {} in {:?}, the new keys are {:?} in {n_kv_heads} heads in {:?}; make another with new_cache",
                        self.n_kv_heads,
                        width / self.n_kv_heads,
                        old_key.dtype(),
                        key.dims(),
                        key.dtype()
                    );
                }
                let keep = window.map_or(kept, |w| kept.min(w - 1));
                let join = |old: &Tensor, new: &Tensor| {
                    Tensor::cat(&[&old.narrow(1, kept - keep, keep)?, new], 1)
                };
                (join(old_key, key)?, join(old_value, value)?)
            }
        };
        self.appended += key.dim(1)?;
        self.n_kv_heads = n_kv_heads;
        let kept = (without_graph(&all.0), without_graph(&all.1));
        Ok(self.kept.insert(kept).clone())
    }

    /// Forgets the positions from `seen` on.
    fn truncate(&mut self, seen: usize) -> Result<()> {
        if let Some((key, value)) = &self.kept {
            let kept = key
                .dim(1)?
                .saturating_sub(self.appended.saturating_sub(seen));
            self.kept = Some((key.narrow(1, 0, kept)?, value.narrow(1, 0, kept)?));
        }
        if seen == 0 {
            self.kept = None;
        }
        self.appended = self.appended.min(seen);
        Ok(())
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
