//! Keys and values of earlier positions, so that decoding computes each position once.

use candle_core::{DType, Result, Tensor};

/// The cache of a whole stack; made by [`Stack::new_cache`](crate::Stack::new_cache).
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

    /// How many positions have been seen.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        *self = Self::new(self.layers.len());
    }

    /// Takes in the padding mask of `seq` new positions; returns that of all positions.
    pub(crate) fn extend_keep(
        &mut self,
        new: Option<&Tensor>,
        batch: usize,
        seq: usize,
    ) -> Result<Option<Tensor>> {
        if self.keep.is_none() && new.is_none() {
            return Ok(None);
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

/// One attention's keys and values, `[batch, n_kv_heads, kept, head_dim]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerCache {
    kept: Option<(Tensor, Tensor)>,
    /// Keys and values of an encoder's output, projected once.
    pub(crate) memory: Option<(Tensor, Tensor)>,
}

impl LayerCache {
    /// Appends new keys and values; returns all that the new queries may see. With a window of `w`,
    /// the oldest new query sees `w - 1` earlier keys, and older ones are dropped.
    pub(crate) fn append(
        &mut self,
        key: &Tensor,
        value: &Tensor,
        window: Option<usize>,
    ) -> Result<(Tensor, Tensor)> {
        let all = match self.kept.take() {
            None => (key.clone(), value.clone()),
            Some((old_key, old_value)) => {
                let kept = old_key.dim(2)?;
                let keep = window.map_or(kept, |w| kept.min(w - 1));
                let recent = |old: Tensor| old.narrow(2, kept - keep, keep);
                let join = |old: Tensor, new: &Tensor| Tensor::cat(&[&recent(old)?, new], 2);
                (join(old_key, key)?, join(old_value, value)?)
            }
        };
        self.kept = Some(all.clone());
        Ok(all)
    }
}
