//! Keys and values of earlier positions, packed as attention reads them.

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::{
    config::AttentionConfig,
    cpu::{attention::KeyValuePanels, isa::Isa},
};

/// The cache of a [`PackedStack`](crate::PackedStack); made by [`PackedStack::new_cache`](crate::PackedStack::new_cache).
///
/// A new position is written beside the earlier ones; nothing is copied or packed again. With a sliding window, what no
/// later query can see is dropped and its memory used again.
#[derive(Debug)]
pub struct PackedCache {
    pub(super) layers: Vec<PackedLayerCache>,
    /// Positions seen so far, dropped ones included.
    seen: usize,
    /// Of each sequence the marks of all positions, 1 = keep; empty while nothing is masked.
    keep: Vec<Vec<u8>>,
}

/// One layer's keys and values.
#[derive(Debug, Default)]
pub(super) struct PackedLayerCache {
    own: Option<KeyValuePanels>,
    /// Of an encoder's output, projected once.
    pub memory: Option<KeyValuePanels>,
    batch: usize,
}

impl PackedCache {
    pub(super) fn new(n_layers: usize) -> Self {
        Self {
            layers: (0..n_layers).map(|_| PackedLayerCache::default()).collect(),
            seen: 0,
            keep: Vec::new(),
        }
    }

    /// How many positions have been seen.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Forgets everything, and keeps the memory for the next sequence.
    pub fn reset(&mut self) {
        self.seen = 0;
        self.keep.clear();
        for layer in &mut self.layers {
            layer.memory = None;
            if let Some(own) = &mut layer.own {
                own.reset();
            }
        }
    }

    /// Takes in `seq` new positions; returns how many were before, and the marks of all, `[batch, all]`.
    pub(super) fn extend(
        &mut self,
        new: Option<&Tensor>,
        batch: usize,
        seq: usize,
    ) -> Result<(usize, Option<Tensor>)> {
        let seen = self.seen;
        if let Some(new) = new
            && new.dims() != [batch, seq]
        {
            bail!(
                "attention_mask: has shape {:?}, expected [batch, new positions] = [{batch}, {seq}]",
                new.dims()
            );
        }
        self.seen += seq;
        if self.keep.is_empty() && new.is_none() {
            return Ok((seen, None));
        }
        if self.keep.is_empty() {
            self.keep = vec![vec![1; seen]; batch];
        }
        let marks = match new {
            Some(new) => new.to_dtype(DType::U8)?.to_vec2()?,
            None => vec![vec![1; seq]; batch],
        };
        if marks.len() != self.keep.len() {
            bail!(
                "the cache is of a batch of {}, the input of {batch}",
                self.keep.len()
            );
        }
        for (keep, marks) in self.keep.iter_mut().zip(marks) {
            keep.extend::<Vec<u8>>(marks);
        }
        let all = Tensor::from_vec(self.keep.concat(), (batch, self.seen), &Device::Cpu)?;
        Ok((seen, Some(all)))
    }
}

impl PackedLayerCache {
    /// Where the keys and values of a batch go.
    ///
    /// # Errors
    /// If those that are there are of another batch.
    pub fn panels(
        &mut self,
        isa: Isa,
        batch: usize,
        config: &AttentionConfig,
    ) -> Result<&mut KeyValuePanels> {
        if self.own.is_some() && self.batch != batch {
            bail!(
                "the cache is of a batch of {}, the input of {batch}; make a new cache",
                self.batch
            );
        }
        self.batch = batch;
        Ok(self.own.get_or_insert_with(|| {
            KeyValuePanels::new(isa, batch, config.n_kv_heads, config.head_dim)
        }))
    }
}
