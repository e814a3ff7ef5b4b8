//! The memory that a load takes at least.

use crate::checkpoint::plan::Place;
use crate::checkpoint::source::Source;
use crate::config::Precision;

/// The role of the table of words.
const WORDS: &str = "embeddings.word.weight";

/// What is loaded, and how it is held.
pub(super) struct Room<'s> {
    pub sources: Vec<&'s Source>,
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
            .map(|source| match self.packing {
                Some(precision) if self.is_packed(source, precision) => {
                    count(source) * least_bits(precision) / 8
                }
                _ => count(source) * self.number as u64,
            })
            .sum()
    }

    /// What some take as they are read.
    fn read(&self, is_meant: impl Fn(&Source) -> bool) -> u64 {
        let meant = self.sources.iter().filter(|source| is_meant(source));
        meant.map(|source| count(source) * self.number as u64).sum()
    }

    /// Whether it may be: of codes that a file stores, anything.
    fn is_packed(&self, source: &Source, precision: Precision) -> bool {
        let is_table = source.role.starts_with("embeddings.");
        let is_shared = source.role == WORDS && self.shares_words;
        precision == Precision::AsStored || source.shape.len() > 1 && (!is_table || is_shared)
    }
}

fn count(source: &Source) -> u64 {
    source.shape.iter().map(|&n| n as u64).product()
}

/// The bits that packed weights have at least.
fn least_bits(precision: Precision) -> u64 {
    match precision {
        Precision::F32 => 32,
        Precision::F16 | Precision::Bf16 => 16,
        Precision::Int8 => 8,
        Precision::Int4 { .. } | Precision::AsStored => 4,
    }
}
