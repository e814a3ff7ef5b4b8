//! The configuration of vectors for positions that are added to words.

use serde::{Deserialize, Serialize};

/// The configuration of a table with a vector for each position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositionTableConfig {
    /// Rows of the table.
    pub n_rows: usize,
    /// The row of the first position.
    pub first_row: usize,
    /// Which tokens are counted.
    pub counted: Counted,
    /// What a row is.
    #[serde(default)]
    pub vectors: PositionVectors,
}

/// What the row of a position is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PositionVectors {
    /// A learned vector.
    #[default]
    Learned,
    /// The sines of the position times `10000^(-i / n)`, then its cosines, where `i` counts to the half of the width; nothing is
    /// stored. A token that is not counted has zeros.
    Sines(LastFrequency),
}

/// What the frequencies of sines and cosines end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastFrequency {
    /// The one before 1/10000: `n` is the half of the width (Marian, Pegasus).
    Before,
    /// 1/10000: `n` is one less (M2M100, XGLM).
    Reached,
}

impl PositionTableConfig {
    /// How many tokens can be counted.
    pub fn n_positions(&self) -> usize {
        self.n_rows.saturating_sub(self.first_row)
    }
}

/// Which tokens the rows of a position table are counted over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Counted {
    /// All of them, padding included (BERT, GPT-2).
    All,
    /// Those that the mask keeps; the others have the row before the first (OPT).
    Kept,
    /// Those with another id than this; the others have the row before the first (RoBERTa).
    Except(u32),
}
