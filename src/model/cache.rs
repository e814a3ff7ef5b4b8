//! A model's key/value cache.

use candle_core::Result;

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

    /// Returns a cache with the given sequences, like [`KvCache::fork`].
    ///
    /// # Errors
    /// If a sequence is not in the batch.
    pub fn fork(&self, sequences: &[usize]) -> Result<Self> {
        let mut fork = self.clone();
        fork.take_sequences(sequences, None)?;
        Ok(fork)
    }

    /// Appends the sequences in another cache that belongs to the same model, like [`KvCache::join`]. If sequences have
    /// different lengths, later input needs [`ModelInput::with_positions`](crate::model::ModelInput::with_positions).
    ///
    /// # Errors
    /// The errors of [`KvCache::join`].
    pub fn join(&mut self, other: &Self) -> Result<()> {
        let counts_all = [&*self, other].map(Self::counts_all);
        if self.seen() == 0 {
            self.counted.clear();
        }
        self.keys_and_values.join(&other.keys_and_values)?;
        let n_own = self.counted.len();
        self.counted.extend(&other.counted);
        let (own, new) = self.counted.split_at_mut(n_own);
        // As if the padding had been computed.
        for (counted, counts_all) in [own, new].into_iter().zip(counts_all) {
            if counts_all {
                counted.fill(self.keys_and_values.seen() as u32);
            }
        }
        Ok(())
    }

    fn counts_all(&self) -> bool {
        self.counted.iter().all(|&n| n as usize == self.seen())
    }

    /// Goes back to the first `to` positions, for example those that two prompts share, or to fewer, like
    /// [`KvCache::rewind`]. Returns the number of positions that remain: 0 if the model did not count a token, such
    /// as padding, as a position.
    pub fn rewind(&mut self, to: usize) -> usize {
        let to = if self.counts_all() { to } else { 0 };
        let reached = self.keys_and_values.rewind(to);
        for counted in &mut self.counted {
            *counted = (*counted).min(reached as u32);
        }
        reached
    }

    /// Replaces the batch by copies of the given sequences, in this order. The encoder output is taken from the
    /// sequences `encoder_rows`, if given. These must rise, and must hold the same encoder output.
    ///
    /// # Errors
    /// If a sequence is not in the batch.
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
