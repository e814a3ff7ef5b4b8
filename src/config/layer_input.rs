//! The configuration of inputs that each layer of a stack has for itself: per-layer embeddings.

use serde::{Deserialize, Serialize};

use super::{Activation, finite, size};
use crate::error::Result;

/// What a block does with an input that it has for itself: behind the feed-forward, `x + norm(output(act(gate(x)) · input))`
/// (Gemma 3n and 4; transformers' `Gemma4TextDecoderLayer`,
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma4/modeling_gemma4.py>).
///
/// A stack makes the inputs of its layers: [`StackConfig::layer_inputs`](crate::StackConfig::layer_inputs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerInputConfig {
    /// Width of the input.
    pub width: usize,
    /// The activation of the gate.
    pub activation: Activation,
}

impl LayerInputConfig {
    pub(super) fn validate(&self) -> Result<()> {
        size("the width of a layer's input", self.width)
    }
}

/// The table of words that the inputs of layers are made of: a row has a part for each layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerInputTable {
    /// The number of tokens. Those beyond have the row of the first.
    pub n_tokens: usize,
    /// Width of a row: that of one input times the number of layers.
    pub width: usize,
    /// Factor on the rows.
    pub scale: f64,
}

impl LayerInputTable {
    /// The table of inputs of this width for so many layers, scaled by `√width` as Gemma's is.
    pub fn new(n_tokens: usize, n_layers: usize, width: usize) -> Self {
        Self {
            n_tokens,
            width: n_layers.saturating_mul(width),
            scale: (width as f64).sqrt(),
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        size("the number of tokens with inputs for layers", self.n_tokens)?;
        size("the width of the table of layers' inputs", self.width)?;
        finite("the factor on layers' inputs", self.scale)
    }
}
