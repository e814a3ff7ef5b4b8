//! The mixer of a block: the layer through which a position reads other positions.
//!
//! Only this folder matches on [`Mixer`]. Everything else reads a mixer's [`MixerFacts`].

use candle_blocks_kernels::memory::LargePages;
use candle_core::{ModuleT, Result, Tensor, bail};

use crate::config::{MixerConfig, MixerFacts};
use crate::layers::packed::Packing;
use crate::layers::state::LayerState;
use crate::layers::visit::parts;
use crate::layers::{ParameterSource, pass::Pass};
use crate::ops::Value;
use layer::MixerLayer;

mod attention;
mod gated_delta_net;
mod hybrid_heads;
mod layer;
mod lightning;
mod mamba;
mod mamba2;
mod recurrent;
mod rg_lru;
mod short_convolution;

pub(crate) use attention::QueryKeyNorms;
pub use attention::{Attention, LatentProjections, QueryKeyValue};
pub use gated_delta_net::GatedDeltaNet;
pub use hybrid_heads::HybridHeads;
pub use lightning::LightningAttention;
pub use mamba::Mamba;
pub use mamba2::Mamba2;
pub use rg_lru::RgLru;
pub use short_convolution::ShortConvolution;

/// The mixer of a block. [`TransformerBlock::mixer`](crate::TransformerBlock::mixer) returns it in its sublayer.
#[derive(Clone, Debug)]
// Most blocks have attention, the largest: a box would save no memory and cost a pointer.
#[allow(clippy::large_enum_variant)]
#[non_exhaustive]
pub enum Mixer {
    /// Softmax attention.
    Attention(Attention),
    /// A gated short convolution.
    ShortConvolution(ShortConvolution),
    /// A gated delta rule.
    GatedDeltaNet(GatedDeltaNet),
    /// Mamba's state space model.
    Mamba(Mamba),
    /// Mamba-2's state space model.
    Mamba2(Mamba2),
    /// A real-gated linear recurrent unit.
    RgLru(RgLru),
    /// Lightning attention.
    Lightning(LightningAttention),
    /// Attention and Mamba-2 side by side.
    HybridHeads(Box<HybridHeads>),
    /// No mixer, in a block that is a feed-forward alone.
    Absent {
        /// The width of the block's input and output.
        d_model: usize,
    },
}

parts!(Mixer:
    Self::Attention(attention) => [attention] [],
    Self::ShortConvolution(convolution) => [] [convolution],
    Self::GatedDeltaNet(delta) => [] [delta],
    Self::Mamba(mamba) => [] [mamba],
    Self::Mamba2(mamba) => [] [mamba],
    Self::RgLru(lru) => [] [lru],
    Self::Lightning(lightning) => [] [lightning],
    Self::HybridHeads(heads) => [heads] [],
    Self::Absent { .. } => [] []);

/// The roles of mixers within the block's, which is that of an attention.
const CONVOLUTION: &str = "convolution";
const DELTA: &str = "delta";
const SELECTIVE: &str = "selective";
const MAMBA: &str = "mamba";
const LRU: &str = "lru";
const LIGHTNING: &str = "lightning";

impl Mixer {
    /// Creates the mixer with parameters from `vb`.
    ///
    /// # Errors
    /// Same as for the constructor of its kind.
    pub(super) fn new(config: &MixerConfig, vb: ParameterSource) -> Result<Self> {
        Ok(match config {
            MixerConfig::Attention(attention) => Self::Attention(Attention::new(attention, vb)?),
            MixerConfig::ShortConvolution(convolution) => {
                Self::ShortConvolution(ShortConvolution::new(convolution, vb.pp(CONVOLUTION))?)
            }
            MixerConfig::GatedDeltaNet(delta) => {
                Self::GatedDeltaNet(GatedDeltaNet::new(delta, vb.pp(DELTA))?)
            }
            MixerConfig::Mamba(mamba) => Self::Mamba(Mamba::new(mamba, vb.pp(SELECTIVE))?),
            MixerConfig::Mamba2(mamba) => Self::Mamba2(Mamba2::new(mamba, vb.pp(MAMBA))?),
            MixerConfig::RgLru(lru) => Self::RgLru(RgLru::new(lru, vb.pp(LRU))?),
            MixerConfig::Lightning(lightning) => {
                Self::Lightning(LightningAttention::new(lightning, vb.pp(LIGHTNING))?)
            }
            MixerConfig::HybridHeads(heads) => {
                Self::HybridHeads(HybridHeads::new(heads, vb)?.into())
            }
            &MixerConfig::Absent { d_model } => Self::Absent { d_model },
        })
    }

    /// Returns the attention, alone or beside Mamba-2.
    ///
    /// # Errors
    /// If the mixer is of another kind.
    pub fn attention(&self) -> Result<&Attention> {
        match self {
            Self::Attention(attention) => Ok(attention),
            Self::HybridHeads(heads) => Ok(heads.attention()),
            other => {
                let kind = other.layer().map_or("absent", |of| of.name());
                bail!("the mixer is {kind}, not attention")
            }
        }
    }

    /// Returns the properties that other parts of a model depend on.
    pub fn facts(&self) -> MixerFacts {
        self.layer()
            .map_or_else(MixerFacts::row_by_row, |of| of.facts())
    }

    /// Returns the layer, or the width of an absent mixer.
    fn layer(&self) -> std::result::Result<&dyn MixerLayer, usize> {
        Ok(match self {
            Self::Attention(attention) => attention,
            Self::ShortConvolution(convolution) => convolution,
            Self::GatedDeltaNet(delta) => delta,
            Self::Mamba(mamba) => mamba,
            Self::Mamba2(mamba) => mamba,
            Self::RgLru(lru) => lru,
            Self::Lightning(lightning) => lightning,
            Self::HybridHeads(heads) => &**heads,
            &Self::Absent { d_model } => return Err(d_model),
        })
    }

    /// Returns true if the weights are packed.
    pub(super) fn is_packed(&self) -> bool {
        self.layer().is_ok_and(MixerLayer::is_packed)
    }

    /// Returns the mixer with packed weights.
    pub(super) fn packed(&self, packing: &Packing) -> Result<Self> {
        self.layer()
            .map_or_else(|_| Ok(self.clone()), |of| of.packed_mixer(packing))
    }

    /// Creates the empty state for a cache. A packed mixer allocates from `pages`.
    pub(super) fn new_state(&self, pages: &LargePages) -> LayerState {
        self.layer()
            .map_or_else(|_| LayerState::absent(), |of| of.new_state(pages))
    }

    /// # Errors
    /// If the state belongs to another mixer or another number of sequences.
    pub(super) fn check_state(&self, state: &LayerState, batch: usize) -> Result<()> {
        self.layer()
            .map_or_else(|_| state.check_absent(), |of| of.check_state(state, batch))
    }

    /// Computes the output for positions after the cached ones, and adds it to `residual`.
    pub(super) fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut LayerState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        match (self.layer(), residual) {
            (Ok(layer), _) => layer.apply(x, pass, state, residual),
            (Err(_), Some(residual)) => Ok(residual.clone()),
            (Err(_), None) => pass.requested_rows(x.clone())?.zeros(),
        }
    }
}

impl ModuleT for Mixer {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.layer()
            .map_or_else(|_| x.zeros_like(), |of| of.forward_t(x, train))
    }
}
