//! The configuration of position tables, whose rows are added to word embeddings.

use serde::{Deserialize, Serialize};

/// The configuration of a table with a row for each position.
/// Set it in [`TokenEmbeddingsConfig::positions`](crate::config::TokenEmbeddingsConfig::positions).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositionTableConfig {
    /// The row count.
    pub n_rows: usize,
    /// The first position's row.
    pub first_row: usize,
    /// The tokens that count as positions.
    pub counted: CountedTokens,
    /// Learned or computed rows.
    #[serde(default)]
    pub vectors: PositionVectors,
}

/// Learned or computed rows. Set them in [`PositionTableConfig::vectors`](crate::config::PositionTableConfig::vectors).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PositionVectors {
    /// Learned rows.
    #[default]
    Learned,
    /// The sines of the position times `10000^(-i / n)`, then its cosines, with `i` from 0 to half the width.
    /// Nothing is stored. A token that is not counted has zeros.
    Sines(LastFrequency),
}

/// The last frequency for sines and cosines. Set it in [`PositionVectors::Sines`](crate::config::PositionVectors::Sines).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastFrequency {
    /// The last frequency is the one before 1/10000: `n` is half the width (Marian, Pegasus).
    Before,
    /// The last frequency is 1/10000: `n` is half the width minus 1 (M2M100, XGLM).
    Reached,
}

impl PositionTableConfig {
    /// Returns a table of `n_rows` learned vectors: row 0 is for position 0, and every token counts.
    #[must_use]
    pub fn new(n_rows: usize) -> Self {
        Self {
            n_rows,
            first_row: 0,
            counted: CountedTokens::All,
            vectors: PositionVectors::Learned,
        }
    }

    /// Returns the largest number of counted tokens.
    pub fn n_positions(&self) -> usize {
        self.n_rows.saturating_sub(self.first_row)
    }
}

/// The tokens that a position table counts.
/// Set them in [`PositionTableConfig::counted`](crate::config::PositionTableConfig::counted).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CountedTokens {
    /// All tokens, including padding (BERT, GPT-2).
    All,
    /// Tokens that the mask keeps. The others have the row before the first (OPT).
    Kept,
    /// Tokens with an id other than this. The others have the row before the first (RoBERTa).
    Except(u32),
}
