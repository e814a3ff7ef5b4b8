//! A query factor that grows with the position.

use serde::{Deserialize, Serialize};

use super::{finite, size};
use crate::error::Result;

/// The definition of a position for a temperature.
/// Set it in [`PositionTemperature::by`](crate::config::PositionTemperature::by).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemperatureBy {
    /// The context's position, like in a rotary embedding.
    #[default]
    Position,
    /// The index among all tokens, including padding (Llama 4).
    Place,
}

/// A softmax temperature by position: after their rotation and norm, queries at position `p` are multiplied by `1 +
/// beta·ln(1 + ⌊(p + offset) / interval⌋)`, so that attention does not flatten over long contexts (Nakanishi 2025,
/// <https://arxiv.org/abs/2501.19399>). transformers' `get_llama_4_attn_scale`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/ministral3/modeling_ministral3.py>.
/// Set it in [`AttentionConfig::temperature`](crate::AttentionConfig::temperature).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PositionTemperature {
    /// The growth rate.
    pub beta: f64,
    /// The number of positions that share a factor. The first interval's factor is 1.
    pub interval: usize,
    /// The offset added to positions. Llama 4 counts from 1.
    pub offset: usize,
    /// The definition of a position.
    #[serde(default)]
    pub by: TemperatureBy,
}

impl PositionTemperature {
    /// Returns the temperature of queries by their positions.
    #[must_use]
    pub fn new(beta: f64, interval: usize, offset: usize, by: TemperatureBy) -> Self {
        Self {
            beta,
            interval,
            offset,
            by,
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        finite("beta of the temperature by position", self.beta)?;
        size("the interval of the temperature by position", self.interval)
    }

    /// Returns the query factor at a position.
    pub(crate) fn factor(&self, position: u32) -> f64 {
        let intervals = (position as usize).saturating_add(self.offset) / self.interval;
        1.0 + self.beta * (intervals as f64).ln_1p()
    }
}
