//! Packing of composite layers.

use candle_core::{DType, Result, Tensor, bail};

use super::Packing;
use crate::config::Precision;
use crate::layers::norm::packed::row_norm;
use crate::layers::own::gemma::GemmaParts;
use crate::layers::{
    BlockFeedForward, BranchScale, FeedForward, Norm, RelativeBias, Stack, Sublayer, SublayerNorm,
    TransformerBlock,
};

packs!(BlockFeedForward);
packs!(TransformerBlock);

impl Norm {
    pub(crate) fn packed(&self) -> Result<Self> {
        let in_f32 = |of: &Tensor| of.detach().to_dtype(DType::F32);
        let bias = self.bias().map(in_f32).transpose()?;
        let norm = Self::from_parts(in_f32(self.weight())?, bias, *self.config())?;
        Ok(norm.with_packed(row_norm(self)?))
    }
}

impl BlockFeedForward {
    pub(in crate::layers) fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(match self {
            Self::Dense(dense) => Self::Dense(dense.packed(packing)?),
            Self::Experts(experts) => Self::Experts(experts.packed(packing)?),
            Self::Absent { .. } => self.clone(),
        })
    }
}

impl<L> Sublayer<L> {
    /// Packs the norms and the scale around a packed inner layer.
    fn packed_around(&self, inner: L) -> Result<Self> {
        let scale = match &self.scale {
            BranchScale::Learned(vector) => {
                BranchScale::Learned(vector.detach().to_dtype(DType::F32)?)
            }
            other => other.clone(),
        };
        let norm = self.norm().try_map(Norm::packed)?;
        Ok(self.with_parts(inner, norm, scale))
    }
}

/// Implements packing for a sublayer whose inner layer computes each row independently.
macro_rules! packs_around {
    ($inner:ident) => {
        impl Sublayer<$inner> {
            pub(in crate::layers) fn packed(&self, packing: &Packing) -> Result<Self> {
                check_widths(self.norm(), self.inner().widths())?;
                self.packed_around(self.inner().packed(packing)?)
            }
        }

        packs!(Sublayer<$inner>);
    };
}

packs_around!(FeedForward);
packs_around!(BlockFeedForward);

/// # Errors
/// If an inner layer and the norms around it have different widths.
fn check_widths(norms: &SublayerNorm, [d_in, d_out]: [usize; 2]) -> Result<()> {
    if d_in != d_out {
        bail!("sublayer: the inner layer maps {d_in} columns to {d_out}, expected equal widths");
    }
    match norms.all().find(|norm| norm.config().d_model != d_in) {
        None => Ok(()),
        Some(norm) => {
            let width = norm.config().d_model;
            bail!("sublayer: the norm has width {width}, expected {d_in}")
        }
    }
}

impl TransformerBlock {
    pub(crate) fn packed(&self, packing: &Packing) -> Result<Self> {
        let mixer = self.mixer.inner().packed(&packing.at("attention"))?;
        let cross = self.cross_attention.as_ref();
        let cross = cross.map(|cross| {
            let packing = packing.at("cross_attention");
            cross.packed_around(cross.inner().packed_cross(&packing)?)
        });
        let network = self.feed_forward.inner();
        let network = network.packed(&packing.at("feed_forward"))?;
        Ok(Self {
            mixer: self.mixer.packed_around(mixer)?,
            cross_attention: cross.transpose()?,
            feed_forward: self.feed_forward.packed_around(network)?,
            own: self.own.packed(packing)?,
            ..self.clone()
        })
    }
}

impl GemmaParts {
    pub(in crate::layers) fn packed(&self, packing: &Packing) -> Result<Self> {
        let mut packed = packing.linears_of(self)?;
        if let Some(input) = &mut packed.layer_input {
            *input = input.packed_around(input.inner().clone())?;
        }
        if let Some(laurel) = &mut packed.laurel {
            laurel.norm = laurel.norm.packed()?;
        }
        if let Some(altup) = &mut packed.altup {
            altup.router_norm = altup.router_norm.packed()?;
            altup.input_scale = altup.input_scale.detach().to_dtype(DType::F32)?;
        }
        if let Some(scale) = &mut packed.output_scale {
            *scale = scale.detach().to_dtype(DType::F32)?;
        }
        Ok(packed)
    }
}

impl Stack {
    /// Packs the weights for inference on the CPU. [`Stack::packed`] and
    /// `Checkpoint::load` never hold more than one block unpacked.
    ///
    /// # Errors
    /// If the stack is not on the CPU or is f64, or a weight is beyond the range of the precision.
    pub fn pack(&self, precision: Precision) -> Result<Self> {
        let packing = Packing::new(precision)?.with_relative(self.relative_embeddings())?;
        let blocks = self.blocks.iter().enumerate();
        let blocks = blocks.map(|(i, block)| block.packed(&packing.of_block(i)));
        let blocks = blocks.collect::<Result<_>>()?;
        let shared = self.shared.packed(&packing)?;
        packing.check_codes()?;
        Ok(self.with_packed(blocks, shared))
    }
}

impl crate::layers::SharedParts {
    pub(crate) fn packed(&self, packing: &Packing) -> Result<Self> {
        let in_f32 = |bias: &RelativeBias| -> Result<RelativeBias> {
            Ok(bias.with_table(bias.table().detach().to_dtype(DType::F32)?))
        };
        let mut packed = packing.linears_of(self)?;
        packed.relative_biases = self.relative_biases.try_map(in_f32)?;
        packed.final_norm = self.final_norm.as_ref().map(Norm::packed).transpose()?;
        if let Some(inputs) = &mut packed.layer_inputs {
            inputs.norm = inputs.norm.packed()?;
        }
        Ok(packed)
    }
}
