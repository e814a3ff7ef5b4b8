//! What a stack makes for each of its layers.

use candle_core::{Result, bail};

use super::Stack;
use crate::layers::{LayerInputs, Streams, TransformerBlock, pass::Layer, pass::Pass};
use crate::ops::Value;

impl Stack {
    /// Adds what makes the inputs that layers have for themselves.
    ///
    /// # Errors
    /// If it makes other inputs than the blocks read, or not one for each layer.
    pub fn with_layer_inputs(mut self, inputs: Option<LayerInputs>) -> Result<Self> {
        let width = inputs.as_ref().map(LayerInputs::width);
        for block in &self.blocks {
            let read = block
                .layer_input()
                .map(|input| input.inner().gate().shape().0);
            if read != width {
                bail!("stack: inputs of width {width:?} for layers, of which one reads {read:?}");
            }
        }
        if let Some(inputs) = &inputs {
            let (found, d_model) = (inputs.n_layers(), self.blocks[0].d_model());
            if found != self.layers.len() || inputs.projection().shape().1 != d_model {
                bail!(
                    "stack: inputs for {found} layers from rows of {}, expected {} from {d_model}",
                    inputs.projection().shape().1,
                    self.layers.len()
                );
            }
        }
        self.layer_inputs = inputs;
        Ok(self)
    }

    /// Adds what makes the streams that blocks compute one of.
    ///
    /// # Errors
    /// If blocks have other streams, or none.
    pub fn with_streams(mut self, streams: Option<Streams>) -> Result<Self> {
        self.streams = streams;
        self.check_streams()?;
        Ok(self)
    }

    /// # Errors
    /// As for [`Self::with_streams`].
    pub(crate) fn check_streams(&self) -> Result<()> {
        let expected = self.streams.as_ref().map_or(1, Streams::n_streams);
        for block in &self.blocks {
            let found = block.altup().map_or(1, |altup| altup.config().n_streams);
            let streams = self.streams.as_ref();
            let width = streams.and_then(|streams| streams.spread().first());
            let width = width.map_or(block.d_model(), |first| first.shape().0);
            if found != expected || width != block.d_model() {
                bail!(
                    "stack: a block of {found} streams of width {}, expected {expected} of {width}",
                    block.d_model()
                );
            }
        }
        Ok(())
    }

    /// The inputs that the layers of a pass have for themselves, side by side.
    pub(crate) fn inputs_of_layers(&self, x: &Value, pass: &Pass) -> Result<Option<Value>> {
        let (words, train) = (pass.context.layer_inputs(), pass.context.train());
        match (&self.layer_inputs, words) {
            (Some(inputs), words) => inputs.apply(x, words, train).map(Some),
            (None, None) => Ok(None),
            (None, Some(_)) => unread_words(),
        }
    }

    /// Begins a layer of a pass.
    pub(crate) fn enter(&self, layer: usize, pass: &Pass, inputs: Option<&Value>) -> Result<()> {
        pass.enter(self.relative_biases.own(self.layers[layer]))?;
        let width = self.layer_inputs.as_ref().map_or(0, LayerInputs::width);
        let reads = |block: &TransformerBlock| block.attention().inner().config().shared_keys;
        let is_shared = self.blocks.iter().any(|block| reads(block) == Some(layer));
        pass.begin(Layer {
            shared_as: is_shared.then_some(layer),
            input: inputs.map(|all| all.columns(layer * width..(layer + 1) * width)),
        });
        Ok(())
    }
}

/// What a stack says that is given words for the inputs of its layers, which have none.
pub(crate) fn unread_words<T>() -> Result<T> {
    bail!(
        "stack: rows of words for the inputs of layers, but its layers have none; leave out with_layer_inputs"
    )
}
