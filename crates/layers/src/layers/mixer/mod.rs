//! The mixer of a block: the layer through which a position reads other positions.
//!
//! Only this folder matches on [`Mixer`]. Everything else reads a mixer's [`MixerFacts`].

use candle_blocks_kernels::memory::LargePages;
use candle_core::{ModuleT, Result, Tensor};

use crate::config::{MixerConfig, MixerFacts};
use crate::layers::packed::Packing;
use crate::layers::visit::parts;
use crate::layers::{ParameterSource, pass::Pass, state::LayerState};
use crate::ops::Value;

mod attention;

pub(crate) use attention::QueryKeyNorms;
pub use attention::{Attention, LatentProjections, QueryKeyValue};

/// The mixer of a block. [`TransformerBlock::mixer`](crate::TransformerBlock::mixer) returns it in its sublayer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Mixer {
    /// Softmax attention.
    Attention(Attention),
}

parts!(Mixer: Self::Attention(attention) => [attention] []);

impl Mixer {
    /// Creates the mixer with parameters from `vb`.
    ///
    /// # Errors
    /// Same as [`Attention::new`].
    pub(super) fn new(config: &MixerConfig, vb: ParameterSource) -> Result<Self> {
        Ok(match config {
            MixerConfig::Attention(attention) => Self::Attention(Attention::new(attention, vb)?),
        })
    }

    /// Returns the attention.
    ///
    /// # Errors
    /// If the mixer is of another kind.
    pub fn attention(&self) -> Result<&Attention> {
        match self {
            Self::Attention(attention) => Ok(attention),
        }
    }

    /// Returns the properties that other parts of a model depend on.
    pub fn facts(&self) -> MixerFacts {
        match self {
            Self::Attention(attention) => attention.config().facts(),
        }
    }

    /// Returns true if the weights are packed.
    pub(super) fn is_packed(&self) -> bool {
        match self {
            Self::Attention(attention) => attention.is_packed(),
        }
    }

    /// Returns the mixer with packed weights.
    pub(super) fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(match self {
            Self::Attention(attention) => Self::Attention(attention.packed(packing)?),
        })
    }

    /// Creates the empty state for a cache. A packed mixer allocates from `pages`.
    pub(super) fn new_state(&self, pages: &LargePages) -> LayerState {
        match self {
            Self::Attention(attention) => match attention.is_packed() {
                true => LayerState::panels(pages),
                false => LayerState::rows(),
            },
        }
    }

    /// # Errors
    /// If the state belongs to another mixer or another number of sequences.
    pub(super) fn check_state(&self, state: &LayerState, batch: usize) -> Result<()> {
        match self {
            Self::Attention(attention) => {
                let packed = attention.packed.as_ref();
                state.check(packed.map(|packed| packed.cached(batch)))
            }
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
            Self::Attention(attention) => attention.apply(x, pass, state, residual),
        }
    }
}

impl ModuleT for Mixer {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match self {
            Self::Attention(attention) => attention.forward_t(x, train),
        }
    }
}
