//! The configuration of per-layer inputs (per-layer embeddings).

use serde::{Deserialize, Serialize};

use super::{Activation, finite, size};
use crate::error::Result;

/// A block's per-layer input, which the block uses after the feed-forward: `x + norm(output(act(gate(x)) · input))`
/// (Gemma 3n and 4; transformers' `Gemma4TextDecoderLayer`,
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma4/modeling_gemma4.py>).
///
/// The stack computes the inputs: [`StackConfig::layer_inputs`](crate::StackConfig::layer_inputs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerInputConfig {
    /// The width of the input.
    pub width: usize,
    /// The gate's activation function.
    pub activation: Activation,
}

impl LayerInputConfig {
    /// Returns inputs for each layer with this width and activation.
    #[must_use]
    pub fn new(width: usize, activation: Activation) -> Self {
        Self { width, activation }
    }

    pub(in crate::config) fn validate(&self) -> Result<()> {
        size("the width of a per-layer input", self.width)
    }
}

/// The word table for per-layer inputs. A row has a part for each layer.
/// Set it in [`TokenEmbeddingsConfig::layer_inputs`](crate::config::TokenEmbeddingsConfig::layer_inputs).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LayerInputTable {
    /// The vocabulary size. Larger token ids use row 0.
    pub n_tokens: usize,
    /// The row width: the width of an input times the layer count.
    pub width: usize,
    /// The factor on the rows.
    pub scale: f64,
}

impl LayerInputTable {
    /// Returns the table for inputs of this width for `n_layers` layers, scaled by `√width` as in Gemma.
    pub fn new(n_tokens: usize, n_layers: usize, width: usize) -> Self {
        Self {
            n_tokens,
            width: n_layers.saturating_mul(width),
            scale: (width as f64).sqrt(),
        }
    }

    pub(in crate::config) fn validate(&self) -> Result<()> {
        size("the number of tokens with per-layer inputs", self.n_tokens)?;
        size("the width of the table for per-layer inputs", self.width)?;
        finite("the factor on per-layer inputs", self.scale)
    }
}
