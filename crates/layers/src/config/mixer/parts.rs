//! The parts of recurrent mixers that files join in one tensor.

use serde::Deserialize;

use super::MixerConfig;

/// A projection of a recurrent mixer, or the convolution of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MixerPart {
    /// The queries.
    Query,
    /// The keys.
    Key,
    /// The values.
    Value,
    /// The gate on the result.
    Gate,
    /// How strongly a position is written.
    Write,
    /// How fast a state decays.
    Decay,
}

impl MixerConfig {
    /// Returns the width of a part, or `None` if the mixer has none.
    #[doc(hidden)]
    pub fn part_width(&self, part: MixerPart) -> Option<usize> {
        use MixerPart::{Decay, Gate, Key, Query, Value, Write};
        match (self, part) {
            (Self::GatedDeltaNet(of), Query | Key) => Some(of.keys_width()),
            (Self::GatedDeltaNet(of), Value | Gate) => Some(of.values_width()),
            (Self::GatedDeltaNet(of), Write | Decay) => Some(of.n_value_heads),
            (Self::Mamba(of), Query | Key) => Some(of.state_dim),
            (Self::Mamba(of), Value | Gate) => Some(of.d_inner),
            (Self::Mamba(of), Decay) => Some(of.step_rank),
            (Self::Mamba2(of), Query | Key) => Some(of.keys_width()),
            (Self::Mamba2(of), Value | Gate) => Some(of.values_width()),
            (Self::Mamba2(of), Decay) => Some(of.n_heads),
            (Self::Lightning(of), Query | Key | Value) => Some(of.width()),
            (Self::HybridHeads(of), _) => Self::Mamba2(of.mamba).part_width(part),
            _ => None,
        }
    }

    /// Returns how many heads keys have.
    #[doc(hidden)]
    pub fn n_key_heads(&self) -> Option<usize> {
        match self {
            Self::Attention(of) => Some(of.n_kv_heads),
            Self::GatedDeltaNet(of) => Some(of.n_key_heads),
            Self::Mamba2(of) => Some(of.n_groups),
            Self::HybridHeads(of) => Some(of.attention.n_kv_heads),
            Self::Lightning(of) => Some(of.n_heads),
            Self::ShortConvolution(_) | Self::Mamba(_) | Self::RgLru(_) | Self::Absent { .. } => {
                None
            }
        }
    }
}
