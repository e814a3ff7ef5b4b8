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

mod attention;
mod gated_delta_net;
mod hybrid_heads;
mod lightning;
mod mamba;
mod mamba2;
mod passes;
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

/// The role of a short convolution within the mixer's, which is that of an attention.
const CONVOLUTION: &str = "convolution";

/// The role of a gated delta rule within the mixer's.
const DELTA: &str = "delta";

/// The role of Mamba, a selective state space model, within the mixer's.
const SELECTIVE: &str = "selective";

/// The role of Mamba-2 within the mixer's.
const MAMBA: &str = "mamba";

/// The role of a real-gated linear recurrent unit within the mixer's.
const LRU: &str = "lru";

/// The role of lightning attention within the mixer's.
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
            other => bail!("the mixer is {}, not attention", other.config().kind()),
        }
    }

    /// Returns the properties that other parts of a model depend on.
    pub fn facts(&self) -> MixerFacts {
        match self {
            Self::Attention(attention) => attention.config().facts(),
            other => other.config().facts(),
        }
    }

    /// Returns the configuration.
    fn config(&self) -> MixerConfig {
        match self {
            Self::Attention(attention) => attention.config().clone().into(),
            Self::ShortConvolution(convolution) => (*convolution.config()).into(),
            Self::GatedDeltaNet(delta) => (*delta.config()).into(),
            Self::Mamba(mamba) => (*mamba.config()).into(),
            Self::Mamba2(mamba) => (*mamba.config()).into(),
            Self::RgLru(lru) => (*lru.config()).into(),
            Self::Lightning(lightning) => (*lightning.config()).into(),
            Self::HybridHeads(heads) => heads.config().into(),
            &Self::Absent { d_model } => MixerConfig::Absent { d_model },
        }
    }

    /// Returns true if the weights are packed.
    pub(super) fn is_packed(&self) -> bool {
        match self {
            Self::Attention(attention) => attention.is_packed(),
            Self::ShortConvolution(convolution) => convolution.is_packed(),
            Self::GatedDeltaNet(delta) => delta.is_packed(),
            Self::Mamba(mamba) => mamba.is_packed(),
            Self::Mamba2(mamba) => mamba.is_packed(),
            Self::RgLru(lru) => lru.is_packed(),
            Self::Lightning(lightning) => lightning.is_packed(),
            Self::HybridHeads(heads) => heads.is_packed(),
            Self::Absent { .. } => false,
        }
    }

    /// Returns the mixer with packed weights.
    pub(super) fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(match self {
            Self::Attention(attention) => Self::Attention(attention.packed(packing)?),
            Self::ShortConvolution(convolution) => {
                Self::ShortConvolution(convolution.packed(&packing.at(CONVOLUTION))?)
            }
            Self::GatedDeltaNet(delta) => Self::GatedDeltaNet(delta.packed(&packing.at(DELTA))?),
            Self::Mamba(mamba) => Self::Mamba(mamba.packed(&packing.at(SELECTIVE))?),
            Self::Mamba2(mamba) => Self::Mamba2(mamba.packed(&packing.at(MAMBA))?),
            Self::RgLru(lru) => Self::RgLru(lru.packed(&packing.at(LRU))?),
            Self::Lightning(of) => Self::Lightning(of.packed(&packing.at(LIGHTNING))?),
            Self::HybridHeads(heads) => Self::HybridHeads(heads.packed(packing)?.into()),
            Self::Absent { .. } => self.clone(),
        })
    }

    /// Creates the empty state for a cache. A packed mixer allocates from `pages`.
    pub(super) fn new_state(&self, pages: &LargePages) -> LayerState {
        match self {
            Self::Attention(attention) => of_attention(attention, pages),
            Self::ShortConvolution(_)
            | Self::GatedDeltaNet(_)
            | Self::Mamba(_)
            | Self::Mamba2(_)
            | Self::RgLru(_)
            | Self::Lightning(_) => LayerState::recurrent(),
            Self::HybridHeads(heads) => {
                let keys = of_attention(heads.attention(), pages);
                LayerState::pair(keys, LayerState::recurrent())
            }
            Self::Absent { .. } => LayerState::absent(),
        }
    }

    /// # Errors
    /// If the state belongs to another mixer or another number of sequences.
    pub(super) fn check_state(&self, state: &LayerState, batch: usize) -> Result<()> {
        match self {
            Self::Attention(attention) => check_attention(attention, state, batch),
            Self::ShortConvolution(of) => state.check_recurrent(batch, &of.state_dims()),
            Self::GatedDeltaNet(of) => state.check_recurrent(batch, &of.state_dims()),
            Self::Mamba(of) => state.check_recurrent(batch, &of.state_dims()),
            Self::Mamba2(of) => state.check_recurrent(batch, &of.state_dims()),
            Self::RgLru(of) => state.check_recurrent(batch, &of.state_dims()),
            Self::Lightning(of) => state.check_recurrent(batch, &of.state_dims()),
            Self::HybridHeads(of) => {
                let [keys, states] = state.check_pair()?;
                check_attention(of.attention(), keys, batch)?;
                states.check_recurrent(batch, &of.mamba().state_dims())
            }
            Self::Absent { .. } => state.check_absent(),
        }
    }

    /// Computes the output for positions after the cached ones, and adds it to `residual`.
    pub(super) fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut LayerState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        match self {
            Self::Attention(attention) => attention.apply(x, None, pass, state, residual),
            Self::ShortConvolution(convolution) => convolution.apply(x, pass, state, residual),
            Self::GatedDeltaNet(delta) => delta.apply(x, pass, state, residual),
            Self::Mamba(mamba) => mamba.apply(x, pass, state, residual),
            Self::Mamba2(mamba) => mamba.apply(x, pass, state, residual),
            Self::RgLru(lru) => lru.apply(x, pass, state, residual),
            Self::Lightning(lightning) => lightning.apply(x, pass, state, residual),
            Self::HybridHeads(heads) => heads.apply(x, pass, state, residual),
            Self::Absent { .. } => match residual {
                Some(residual) => Ok(residual.clone()),
                None => pass.requested_rows(x.clone())?.zeros(),
            },
        }
    }
}

/// Creates the empty state of an attention. A packed one allocates from `pages`.
fn of_attention(attention: &Attention, pages: &LargePages) -> LayerState {
    match attention.is_packed() {
        true => LayerState::panels(pages),
        false => LayerState::rows(),
    }
}

fn check_attention(attention: &Attention, state: &LayerState, batch: usize) -> Result<()> {
    let packed = attention.packed.as_ref();
    state.check(packed.map(|packed| packed.cached(batch)))
}

impl ModuleT for Mixer {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match self {
            Self::Attention(attention) => attention.forward_t(x, train),
            Self::ShortConvolution(convolution) => convolution.forward_t(x, train),
            Self::GatedDeltaNet(delta) => delta.forward_t(x, train),
            Self::Mamba(mamba) => mamba.forward_t(x, train),
            Self::Mamba2(mamba) => mamba.forward_t(x, train),
            Self::RgLru(lru) => lru.forward_t(x, train),
            Self::Lightning(lightning) => lightning.forward_t(x, train),
            Self::HybridHeads(heads) => heads.forward_t(x, train),
            Self::Absent { .. } => x.zeros_like(),
        }
    }
}
