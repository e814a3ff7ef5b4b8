//! The memory that a load takes at least.

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::scheme::Place;
use crate::checkpoint::source::Source;
use crate::checkpoint::stored::least_bits;
use crate::config::Precision;

/// The role of the table of words.
const WORDS: &str = "embeddings.word.weight";

/// What is loaded, and how it is held.
pub(super) struct Room<'s> {
    pub sources: Vec<&'s Source>,
    pub files: &'s TensorFiles,
    /// Bytes of a number that is not packed.
    pub number: usize,
    pub packing: Option<Precision>,
    /// Whether the head's weight is the table of words: it is packed then, and words are read from it.
    pub shares_words: bool,
    pub n_blocks: usize,
}

impl Room<'_> {
    /// Bytes that are there at one time. What scales take beside codes is not counted, nor what else comes and goes.
    pub fn needed(&self) -> u64 {
        let all = self.held(|_| true);
        if matches!(self.packing, None | Some(Precision::AsStored)) {
            return all;
        }
        // What is packed is read before, and given back behind: a table of words, then one block after the other.
        let last = Place::Block(self.n_blocks.wrapping_sub(1));
        let block = self.read(|source| Place::of(&source.role) == last);
        let ends = self.held(|source| !matches!(Place::of(&source.role), Place::Block(_)));
        let words = self.read(|source| source.role == WORDS && self.shares_words);
        (all + block).max(ends + words)
    }

    /// What some take in the end.
    fn held(&self, is_meant: impl Fn(&Source) -> bool) -> u64 {
        let meant = self.sources.iter().filter(|source| is_meant(source));
        meant
            .map(|source| (count(source) as f64 * self.least_bits(source) / 8.0) as u64)
            .sum()
    }

    /// What some take as they are read.
    fn read(&self, is_meant: impl Fn(&Source) -> bool) -> u64 {
        let meant = self.sources.iter().filter(|source| is_meant(source));
        meant.map(|source| count(source) * self.number as u64).sum()
    }

    /// The bits that a parameter's numbers have at least.
    fn least_bits(&self, source: &Source) -> f64 {
        let is_table = source.role.starts_with("embeddings.");
        let is_shared = source.role == WORDS && self.shares_words;
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

fn count(source: &Source) -> u64 {
    source.shape.iter().map(|&n| n as u64).product()
}
