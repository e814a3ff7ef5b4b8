//! A model's key/value cache.

use candle_core::{Result, bail};

use crate::layers::KvCache;

/// The key/value cache of a model. It also counts the tokens of each sequence, for models that count positions from
/// the mask. [`Model::new_cache`](crate::model::Model::new_cache) returns it.
#[derive(Clone, Debug)]
pub struct ModelCache {
    pub(super) keys_and_values: KvCache,
    pub(super) counted: Vec<u32>,
}

impl ModelCache {
    pub(super) fn new(keys_and_values: KvCache) -> Self {
        Self {
            keys_and_values,
            counted: Vec::new(),
        }
    }

    /// The number of positions in the cache.
    pub fn seen(&self) -> usize {
        self.keys_and_values.seen()
    }

    /// Keeps only the given sequences of the batch, in their present order.
    ///
    /// # Errors
    /// If a sequence is not in the batch, or the order differs from the batch's. The cache is then unchanged.
    pub fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        self.keys_and_values.keep_sequences(sequences)?;
        self.take_counts(sequences);
        Ok(())
    }

    /// Removes all but the first `seen` positions, for example those that two prompts share.
    ///
    /// # Errors
    /// If a sliding window has dropped positions that would be needed again, or the model did not count a token as a
    /// position. The cache is then unchanged.
    pub fn truncate(&mut self, seen: usize) -> Result<()> {
        if self.counted.iter().any(|&n| n as usize != self.seen()) {
            bail!(
                "the cache cannot go back to {seen} positions: some tokens, such as padding, were not counted"
            );
        }
        self.keys_and_values.truncate(seen)?;
        let counted = self.counted.iter().map(|&n| n.min(seen as u32));
        self.counted = counted.collect();
        Ok(())
    }

    /// Prepares an empty cache for [`Self::take_sequences`].
    pub(crate) fn copying(self) -> Self {
        Self {
            keys_and_values: self.keys_and_values.copying(),
            ..self
        }
    }

    /// Replaces the batch by copies of the given sequences, in this order. The encoder output is taken from the
    /// sequences `encoder_rows`, if given. These must rise, and must hold the same encoder output.
    ///
    /// If a sequence is not in the batch, or the cache was not prepared by [`Self::copying`].
    pub(crate) fn take_sequences(
        &mut self,
        sequences: &[usize],
        encoder_rows: Option<&[usize]>,
    ) -> Result<()> {
        self.keys_and_values
            .take_sequences(sequences, encoder_rows)?;
        self.take_counts(sequences);
        Ok(())
    }

    fn take_counts(&mut self, sequences: &[usize]) {
        let counted = sequences.iter().filter_map(|&row| self.counted.get(row));
        self.counted = counted.copied().collect();
    }
}
