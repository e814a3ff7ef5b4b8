//! The key/value cache, with which decoding computes each position only once.

use candle_core::{DType, Result, Tensor, bail};

/// The key/value cache of a whole stack, created by [`Stack::new_cache`](crate::Stack::new_cache).
///
/// It remembers the keys, values and padding mask of the positions seen so far, without their graph. A clone is
/// independent, so several continuations can start from one prompt.
#[derive(Clone, Debug)]
pub struct KvCache {
    pub(crate) layers: Vec<LayerCache>,
    /// Positions seen so far, dropped ones included.
    pub(crate) seen: usize,
    /// `[batch, seen]`, 1 = keep; `None` while nothing is masked.
    pub(crate) keep: Option<Tensor>,
}

impl KvCache {
    pub(crate) fn new(n_layers: usize) -> Self {
        Self {
            layers: vec![LayerCache::default(); n_layers],
            seen: 0,
            keep: None,
        }
    }

    /// The number of positions seen so far.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Forgets all positions.
    pub fn reset(&mut self) {
        *self = Self::new(self.layers.len());
    }

    /// Restores the `seen` positions and marks from before a call that failed, whichever layer it had reached.
    pub(crate) fn undo(&mut self, seen: usize, keep: Option<Tensor>) -> Result<()> {
        (self.seen, self.keep) = (seen, keep);
        for layer in &mut self.layers {
            layer.truncate(seen)?;
            if seen == 0 {
                layer.memory = None;
            }
        }
        Ok(())
    }

    /// Appends the padding mask of `seq` new positions and returns the mask of all positions.
    ///
    /// # Errors
    /// If the mask is not of the new positions, or the batch is another; nothing is appended then.
    pub(crate) fn extend_keep(
        &mut self,
        new: Option<&Tensor>,
        batch: usize,
        seq: usize,
    ) -> Result<Option<Tensor>> {
        if self.keep.is_none() && new.is_none() {
            return Ok(None);
        }
        if let Some(new) = new
            && new.dims() != [batch, seq]
        {
            let seen = self.seen;
            bail!(
                "attention_mask: has shape {:?}, expected [batch, new positions] = [{batch}, {seq}]; \
                 the cache remembers the mask of the {seen} earlier positions",
                new.dims()
            );
        }
        if let Some(keep) = &self.keep
            && keep.dim(0)? != batch
        {
            bail!(
                "the cache is of a batch of {}, the input of {batch}; make another with new_cache",
                keep.dim(0)?
            );
        }
        let device = |t: &Tensor| t.device().clone();
        let on = match (&self.keep, new) {
            (Some(t), _) | (None, Some(t)) => device(t),
            (None, None) => return Ok(None),
        };
        let ones = |n| Tensor::ones((batch, n), DType::U8, &on);
        let old = match &self.keep {
            Some(keep) => keep.clone(),
            None => ones(self.seen)?,
        };
        let new = match new {
            Some(new) => new.clone(),
            None => ones(seq)?,
        };
        self.keep = Some(Tensor::cat(&[old, new], 1)?);
        Ok(self.keep.clone())
    }
}

/// What a cached pass keeps or returns. candle has no `no_grad`: of variables, each step would keep the graph of all
/// steps before it, in memory that grows with the square of their number.
pub(crate) fn without_graph(tensor: &Tensor) -> Tensor {
    tensor.detach()
}

/// One attention's keys and values, `[batch, n_kv_heads, kept, head_dim]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerCache {
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
    /// If they are of another batch, type or of other heads than those that are there, which stay.
    pub(crate) fn append(
        &mut self,
        key: &Tensor,
        value: &Tensor,
        window: Option<usize>,
    ) -> Result<(Tensor, Tensor)> {
        if let Some((old, _)) = &self.kept {
            let (batch, n_kv_heads, _, head_dim) = old.dims4()?;
            let fits = (batch, n_kv_heads, key.dim(2)?, head_dim) == key.dims4()?
                && old.dtype() == key.dtype();
            if !fits {
                bail!(
                    "the cache is of a batch of {batch} with {n_kv_heads} key/value heads of {head_dim} in {:?}, the new keys are {:?} in {:?}; make another with new_cache",
                    old.dtype(),
                    key.dims(),
                    key.dtype()
                );
            }
        }
        let all = match &self.kept {
            None => (key.clone(), value.clone()),
            Some((old_key, old_value)) => {
                let kept = old_key.dim(2)?;
                let keep = window.map_or(kept, |w| kept.min(w - 1));
                let recent = |old: &Tensor| old.narrow(2, kept - keep, keep);
                let join = |old: &Tensor, new: &Tensor| Tensor::cat(&[&recent(old)?, new], 2);
                (join(old_key, key)?, join(old_value, value)?)
            }
        };
        self.kept = Some((without_graph(&all.0), without_graph(&all.1)));
        self.appended += key.dim(2)?;
        Ok(all)
    }

    /// Forgets the positions from `seen` on.
    fn truncate(&mut self, seen: usize) -> Result<()> {
        if let Some((key, value)) = &self.kept {
            let kept = key
                .dim(2)?
                .saturating_sub(self.appended.saturating_sub(seen));
            self.kept = Some((key.narrow(2, 0, kept)?, value.narrow(2, 0, kept)?));
        }
        if seen == 0 {
            self.kept = None;
        }
        self.appended = self.appended.min(seen);
        Ok(())
    }

    /// Keeps the keys and values of an encoder's output, and returns them.
    pub(crate) fn keep_memory(&mut self, (key, value): (Tensor, Tensor)) -> (Tensor, Tensor) {
        let kept = (without_graph(&key), without_graph(&value));
        self.memory.insert(kept).clone()
    }

    /// Keys and values of an encoder's output of so many sequences and positions, if they are known.
    ///
    /// # Errors
    /// If those that are known are of another output.
    pub(crate) fn known_memory(
        &self,
        batch: usize,
        keys: usize,
    ) -> Result<Option<&(Tensor, Tensor)>> {
        if let Some((key, _)) = &self.memory {
            let (known_batch, _, known, _) = key.dims4()?;
            if (known_batch, known) != (batch, keys) {
                bail!(
                    "encoder_hidden_states: {batch} of {keys} positions, but the cache is of {known_batch} of {known}; reset it, or make another with new_cache"
                );
            }
        }
        Ok(self.memory.as_ref())
    }
}
