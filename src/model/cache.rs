//! The keys and values of a model's earlier positions.

use candle_core::Result;

use crate::layers::KvCache;

/// The keys and values of earlier positions, and how many tokens of each sequence were counted.
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

    /// The number of positions in it.
    pub fn seen(&self) -> usize {
        self.keys_and_values.seen()
    }

    /// Goes on with these sequences of the batch alone, in this order, which is that of the batch.
    ///
    /// # Errors
    /// If one is not in the batch, or they are in another order. Nothing is dropped then.
    pub fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        self.keys_and_values.keep_sequences(sequences)?;
        self.take_counts(sequences);
        Ok(())
    }

    /// Makes an empty cache one that [`Self::take_sequences`] can be called on.
    pub(crate) fn copying(self) -> Self {
        Self {
            keys_and_values: self.keys_and_values.copying(),
            ..self
        }
    }

    /// Goes on with copies of these sequences of the batch, in this order; of an encoder's output, with that of the sequences
    /// `of_memory`, which rise and attend to the same as they, if there are such.
    ///
    /// # Errors
    /// If one is not in the batch, or the cache does not copy sequences.
    pub(crate) fn take_sequences(
        &mut self,
        sequences: &[usize],
        of_memory: Option<&[usize]>,
    ) -> Result<()> {
        self.keys_and_values.take_sequences(sequences, of_memory)?;
        self.take_counts(sequences);
        Ok(())
    }

    fn take_counts(&mut self, sequences: &[usize]) {
        let counted = sequences.iter().filter_map(|&row| self.counted.get(row));
        self.counted = counted.copied().collect();
    }
}
