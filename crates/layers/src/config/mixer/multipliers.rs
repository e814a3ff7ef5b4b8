//! Constant factors on Mamba-2's projections.

use serde::{Deserialize, Serialize};

/// The factors on Mamba-2's projections of the input (Falcon-H1). Set them in [`Mamba2Config::multipliers`](crate::config::Mamba2Config::multipliers).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct Mamba2Multipliers {
    /// The factor on the gate.
    pub gate: f64,
    /// The factor on the values, before their convolution.
    pub value: f64,
    /// The factor on the keys, before their convolution.
    pub key: f64,
    /// The factor on the queries, before their convolution.
    pub query: f64,
    /// The factor on the steps, before their bias.
    pub step: f64,
}

impl Default for Mamba2Multipliers {
    /// Returns the factors 1.
    fn default() -> Self {
        Self {
            gate: 1.0,
            value: 1.0,
            key: 1.0,
            query: 1.0,
            step: 1.0,
        }
    }
}
