//! A factor on queries that grows with their position.

use serde::{Deserialize, Serialize};

use super::{finite, size};
use crate::error::Result;

/// What a temperature calls a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemperatureBy {
    /// The position of the context, as for a rotation.
    #[default]
    Position,
    /// The place among all tokens, padding included (Llama 4).
    Place,
}

/// A temperature of the softmax by position: after their rotation and norm, queries at position `p` are multiplied by
/// `1 + beta·ln(1 + ⌊(p + offset) / interval⌋)`, so that attention does not flatten over long contexts (Nakanishi 2025,
/// <https://arxiv.org/abs/2501.19399>). transformers' `get_llama_4_attn_scale`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/ministral3/modeling_ministral3.py>.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PositionTemperature {
    /// How fast the factor grows.
    pub beta: f64,
    /// How many positions share a factor; that of the first ones is 1.
    pub interval: usize,
    /// Added to positions before they are counted in intervals: Llama 4 counts from 1.
    pub offset: usize,
    /// What a position is.
    #[serde(default)]
    pub by: TemperatureBy,
}

impl PositionTemperature {
    pub(super) fn validate(&self) -> Result<()> {
        finite("beta of the temperature by position", self.beta)?;
        size("the interval of the temperature by position", self.interval)
    }

    /// The factor on queries at a position.
    pub(crate) fn factor(&self, position: u32) -> f64 {
        let intervals = (position as usize).saturating_add(self.offset) / self.interval;
        1.0 + self.beta * (intervals as f64).ln_1p()
    }
}
