//! Inputs that a stack computes for each of its layers.

use candle_core::{Result, bail};

use super::Stack;
use crate::layers::own::{gemma::LayerInputs, zamba::SharedTransformer};
use crate::layers::{TransformerBlock, pass::Layer, pass::Pass};
use crate::ops::Value;

impl Stack {
    /// Computes the per-layer inputs of a pass, side by side.
    #[doc(hidden)]
    pub fn inputs_of_layers(&self, x: &Value, pass: &Pass) -> Result<Option<Value>> {
        let (rows, train) = (pass.context.layer_inputs(), pass.context.train());
        match (&self.shared.layer_inputs, rows) {
            (Some(inputs), rows) => {
                let gathered = match (rows, &pass.unpadded) {
                    (Some(rows), Some(unpadded)) => Some(unpadded.gathered(rows)?),
                    _ => None,
                };
                inputs.apply(x, gathered.as_ref().or(rows), train).map(Some)
            }
            (None, None) => Ok(None),
            (None, Some(_)) => unread_rows(),
        }
    }

    /// Begins a layer of a pass.
    #[doc(hidden)]
    pub fn enter(&self, layer: usize, pass: &Pass, inputs: Option<&Value>) -> Result<()> {
        let bias = self.shared.relative_biases.own(self.layers[layer]);
        for pass in [Some(pass), pass.last.as_deref()].into_iter().flatten() {
            pass.enter(bias)?;
        }
        let layer_inputs = self.shared.layer_inputs.as_ref();
        let width = layer_inputs.map_or(0, LayerInputs::width);
        let is_shared = self.mixers().any(|of| of.shares_from == Some(layer));
        pass.begin(Layer {
            shared_as: is_shared.then_some(layer),
            only_last: layer + 1 == self.layers.len() && !self.carries_input(),
            input: inputs.map(|all| all.columns(layer * width..(layer + 1) * width)),
            transformer: self.transformer(layer),
        });
        Ok(())
    }
}

impl Stack {
    /// Returns true if rows have the stack's input beside the hidden state (Zamba).
    pub(super) fn carries_input(&self) -> bool {
        let first = self.blocks.first();
        first.is_some_and(|block| block.own.zamba().is_some())
    }

    /// Returns the transformer that a layer runs before its mixer, and the number of this use.
    fn transformer(&self, layer: usize) -> Option<(SharedTransformer, usize)> {
        let block = &self.blocks[self.layers[layer]];
        let number = block.own.transformer()?.number;
        Some((self.transformer_of(block)?.clone(), number))
    }

    /// Returns the transformer that a block runs before its mixer.
    pub(super) fn transformer_of(&self, block: &TransformerBlock) -> Option<&SharedTransformer> {
        let first = block.own.transformer()?.block;
        self.blocks.get(first)?.own.zamba()?.transformer.as_deref()
    }
}

/// Refuses token rows for a stack without per-layer inputs.
fn unread_rows<T>() -> Result<T> {
    bail!(
        "stack: token rows for per-layer inputs are given, but the stack has no such inputs; leave out with_layer_inputs"
    )
}
