//! Layers that the blocks of a stack share.

use candle_core::Result;

use crate::config::{BlockConfig, StackConfig};
use crate::layers::own::gemma::{LayerInputs, Streams};
use crate::layers::position::RelativeBiases;
use crate::layers::visit::parts;
use crate::layers::{Norm, ParameterSource, RelativeEmbeddings};

/// The layers of a stack that belong to no single block.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct SharedParts {
    pub relative_biases: RelativeBiases,
    pub relative_embeddings: Option<RelativeEmbeddings>,
    pub layer_inputs: Option<LayerInputs>,
    pub streams: Option<Streams>,
    pub final_norm: Option<Norm>,
}

impl SharedParts {
    /// Creates the configured layers with parameters from `vb`.
    pub fn new(config: &StackConfig, vb: &ParameterSource) -> Result<Self> {
        let d_model = config.blocks.first().map_or(0, BlockConfig::d_model);
        let embeddings = |embeddings| {
            let read = config.distances();
            let width = read.map_or(d_model, |read| read.width(d_model));
            RelativeEmbeddings::new(embeddings, width, vb.clone())
        };
        let norm = |norm| Norm::new(norm, vb.pp("final_norm"));
        let inputs = |norm| LayerInputs::new(norm, config.layers.len(), d_model, vb);
        let inputs = config.layer_inputs.as_ref().map(inputs);
        let streams = |altup| Streams::new(&altup, d_model, vb);
        let streams = config.altup()?.map(streams);
        let embeddings = config.relative_embeddings.as_ref().map(embeddings);
        Ok(Self {
            relative_biases: RelativeBiases::new(config, vb)?,
            relative_embeddings: embeddings.transpose()?,
            layer_inputs: inputs.transpose()?,
            streams: streams.transpose()?,
            final_norm: config.final_norm.as_ref().map(norm).transpose()?,
        })
    }
}

parts!(SharedParts: Self { layer_inputs, streams: altup, .. } => [] [layer_inputs, altup]);
