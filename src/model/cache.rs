//! A model's key/value cache.

use std::{collections::HashMap, path::Path};

use candle_core::{DType, Device, Result, Tensor};

use crate::Error;
use crate::checkpoint::{files::TensorFiles, write::write_safetensors};
use crate::layers::{KvCache, Stack};

/// The name of the counts of tokens in a file.
const COUNTED: &str = "counted";

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

    /// The number of sequences in the cache.
    pub fn batch(&self) -> usize {
        self.keys_and_values.batch()
    }

    /// The number of positions in the cache.
    pub fn seen(&self) -> usize {
        self.keys_and_values.seen()
    }

    /// Writes the cache to a safetensors file, which [`Model::load_cache`](crate::model::Model::load_cache) reads: a prompt
    /// that many texts share is then computed once. An existing file is replaced when all is written.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> crate::Result<()> {
        let mut tensors: Vec<_> = self.keys_and_values.to_tensors()?.into_iter().collect();
        let counted = Tensor::new(&self.counted[..], &Device::Cpu)?;
        tensors.push((COUNTED.to_string(), counted));
        write_safetensors(path, &tensors, None)
    }

    /// Reads the cache that [`Self::save`] wrote for this stack.
    pub(super) fn load(stack: &Stack, path: &Path, device: &Device) -> crate::Result<Self> {
        let files = TensorFiles::open_files(vec![path.to_path_buf()])?;
        let failed = |reason: String| Error::input(path.display().to_string(), reason);
        let counted = files.contains(COUNTED).then(|| files.read(COUNTED));
        let counted = counted.transpose()?;
        let Some(counted) = counted.filter(|of| of.rank() == 1 && of.dtype() == DType::U32) else {
            return Err(failed(
                "it is not a cache that ModelCache::save wrote".to_string(),
            ));
        };
        let mut tensors = HashMap::new();
        for name in files.names().filter(|name| *name != COUNTED) {
            tensors.insert(name.to_string(), files.read(name)?.to_device(device)?);
        }
        let cache = stack.cache_from_tensors(&tensors);
        let keys_and_values = cache.map_err(|e| failed(e.to_string()))?;
        let counted = counted.to_vec1::<u32>()?;
        let (seen, batch) = (keys_and_values.seen(), keys_and_values.batch());
        if ![0, batch].contains(&counted.len()) || counted.iter().any(|&n| n as usize > seen) {
            let reason = format!("{COUNTED} is {counted:?}, expected {batch} numbers up to {seen}");
            return Err(failed(reason));
        }
        Ok(Self {
            keys_and_values,
            counted,
        })
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
