//! The parts of Gemma 3n and Gemma 4 blocks beside attention and feed-forward.

use candle_core::{Result, Tensor};
use candle_nn::Init;

use crate::config::{BlockConfig, GemmaConfig, NormPlacement};
use crate::layers::own::streams::side_by_side;
use crate::layers::{
    BlockStages, ParameterSource, Sublayer, pass::Pass, sublayer::StageRecorder, visit::parts,
};
use crate::ops::Value;

mod altup;
mod branch_norms;
mod laurel;
mod layer_input;

pub(crate) use altup::{AltUp, Streams};
pub(crate) use branch_norms::BranchNorms;
pub(crate) use laurel::Laurel;
pub(crate) use layer_input::{GatedInput, LayerInputs};

/// The parts of a block beside attention and feed-forward.
#[derive(Clone, Debug)]
pub(crate) struct GemmaParts {
    /// The sublayer for the per-layer input, after the feed-forward.
    pub layer_input: Option<Sublayer<GatedInput>>,
    /// The factor `[1]` on the block's output.
    pub output_scale: Option<Tensor>,
    pub laurel: Option<Laurel>,
    /// The AltUp streams. The block computes one of them.
    pub altup: Option<AltUp>,
}

impl GemmaParts {
    /// Creates the configured parts of a block from `vb`.
    pub fn new(own: &GemmaConfig, config: &BlockConfig, vb: &ParameterSource) -> Result<Self> {
        let input = own.layer_input.as_ref().map(|input| {
            let inner = GatedInput::new(input, config.d_model(), vb.pp("layer_input"))?;
            let placement = NormPlacement::Output;
            Sublayer::of_block("layer_input", inner, placement, 0.0, config, vb)
        });
        let layer_input = input.transpose()?;
        let output_scale = own.output_scale.then(|| {
            let vb = vb.pp("output_scale");
            vb.get_with_hints(1, "weight", Init::Const(1.0))
        });
        let output_scale = output_scale.transpose()?;
        let laurel = own.laurel_rank;
        let laurel = laurel.map(|rank| Laurel::new(rank, &config.norm, &vb.pp("laurel")));
        let laurel = laurel.transpose()?;
        let altup = own.altup.as_ref();
        let altup = altup.map(|altup| AltUp::new(altup, &config.norm, &vb.pp("altup")));
        Ok(Self {
            layer_input,
            output_scale,
            laurel,
            altup: altup.transpose()?,
        })
    }

    /// Computes the output of a block. `branches` computes its attention and feed-forward.
    pub(in crate::layers) fn around(
        &self,
        x: Value,
        pass: &Pass,
        recorder: &mut StageRecorder,
        branches: impl FnOnce(Value, &mut StageRecorder) -> Result<Value>,
    ) -> Result<Value> {
        if let Some(altup) = &self.altup {
            return self.around_streams(altup, &x, pass, recorder, branches);
        }
        let mut x = branches(x, recorder)?;
        if let Some(input) = &self.layer_input {
            let (of_layer, train) = (pass.layer_input()?, pass.context.train());
            let gated = |inner: &GatedInput, x: &Value, residual: Option<&Value>| {
                inner.apply(x, &of_layer, residual, train)
            };
            x = input.apply(&x, None, train, recorder, gated)?;
        }
        match &self.output_scale {
            Some(scale) => x.scale_by(scale),
            None => Ok(x),
        }
    }

    /// Computes the streams after the block, side by side. The block computes the active stream, all streams are
    /// corrected, and the per-layer input is added to all but the first.
    fn around_streams(
        &self,
        altup: &AltUp,
        x: &Value,
        pass: &Pass,
        recorder: &mut StageRecorder,
        branches: impl FnOnce(Value, &mut StageRecorder) -> Result<Value>,
    ) -> Result<Value> {
        let (train, active) = (pass.context.train(), altup.config.active);
        let predicted = altup.predicted(x, train)?;
        let y = branches(predicted[active].clone(), recorder)?;
        let predicted = predicted.into_iter().map(|of| pass.requested_rows(of));
        let predicted = predicted.collect::<Result<Vec<_>>>()?;
        let mut streams = altup.corrected(&predicted, &y, train)?;
        if let Some(input) = &self.layer_input {
            let of_layer = pass.layer_input()?;
            let gated = |inner: &GatedInput, x: &Value, residual: Option<&Value>| {
                inner.apply(x, &of_layer, residual, train)
            };
            let scaled = streams[active].multiply_rows(&altup.input_scale)?;
            let added = input.branch(&scaled, train, recorder, gated)?;
            for stream in &mut streams[1..] {
                *stream = stream.add(&added)?;
            }
        }
        side_by_side(streams.iter())
    }

    /// Adds the LAuReL residual, computed from the attention's normalized input, to the attention sublayer's output
    /// `y`.
    pub fn after_attention(&self, normal: &Value, y: Value, train: bool) -> Result<Value> {
        match &self.laurel {
            Some(laurel) => laurel.apply(normal, &y, train),
            None => Ok(y),
        }
    }

    /// Returns the stages of a block with the active AltUp stream as output.
    pub fn of_streams(&self, stages: BlockStages) -> Result<BlockStages> {
        match &self.altup {
            Some(altup) => stages.of_streams(&altup.config),
            None => Ok(stages),
        }
    }
}

parts!(GemmaParts: Self { layer_input, laurel, altup, .. } => [] [layer_input, laurel, altup]);
