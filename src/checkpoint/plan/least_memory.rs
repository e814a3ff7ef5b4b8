//! Estimates the least memory that loading takes.

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::loader::stored::least_bits;
use crate::checkpoint::plan::source::{StoredParameter, WORD_EMBEDDINGS};
use crate::checkpoint::scheme::ModelPlace;
use crate::config::Precision;

/// The parameters to load, and the form in which they are kept.
pub(crate) struct LeastMemory<'s> {
    pub sources: Vec<&'s StoredParameter>,
    pub files: &'s TensorFiles,
    /// Bytes for an element that is not packed.
    pub number: usize,
    pub packing: Option<Precision>,
    /// The head is tied to the token embeddings. They are then packed, and embeddings are read from the packed weight.
    pub shares_embeddings: bool,
    pub n_blocks: usize,
}

impl LeastMemory<'_> {
    /// Returns how many bytes are needed at one time. Scales for quantized weights and temporary buffers are not
    /// counted.
    pub fn needed(&self) -> u64 {
        let all = self.held(|_| true);
        if matches!(self.packing, None | Some(Precision::AsStored)) {
            return all;
        }
        // A tensor that is packed is read before, and freed after: first the token embeddings, then one block after another.
        let last = ModelPlace::Block(self.n_blocks.wrapping_sub(1));
        let block = self.read(|source| ModelPlace::of(&source.role) == last);
        let ends =
            self.held(|source| !matches!(ModelPlace::of(&source.role), ModelPlace::Block(_)));
        let embeddings =
            self.read(|source| source.role == WORD_EMBEDDINGS && self.shares_embeddings);
        (all + block).max(ends + embeddings)
    }

    /// Returns the selected parameters' size after loading.
    fn held(&self, is_meant: impl Fn(&StoredParameter) -> bool) -> u64 {
        let meant = self.sources.iter().filter(|source| is_meant(source));
        meant
            .map(|source| (count(source) as f64 * self.least_bits(source) / 8.0) as u64)
            .sum()
    }

    /// Returns the selected parameters' size while they are read.
    fn read(&self, is_meant: impl Fn(&StoredParameter) -> bool) -> u64 {
        let meant = self.sources.iter().filter(|source| is_meant(source));
        meant.map(|source| count(source) * self.number as u64).sum()
    }

    /// Returns the fewest bits for each element in a parameter.
    fn least_bits(&self, source: &StoredParameter) -> f64 {
        let is_table = source.role.starts_with("embeddings.");
        let is_shared = source.role == WORD_EMBEDDINGS && self.shares_embeddings;
        let is_packed = source.shape.len() > 1 && (!is_table || is_shared);
        match self.packing {
            Some(Precision::AsStored) => least_bits(self.files, source),
            Some(Precision::F16 | Precision::Bf16) if is_packed => 16.0,
            Some(Precision::Int8) if is_packed => 8.0,
            Some(Precision::Int4 { .. }) if is_packed => 4.0,
            _ => 8.0 * self.number as f64,
        }
    }
}

fn count(source: &StoredParameter) -> u64 {
    source.shape.iter().map(|&n| n as u64).product()
}
