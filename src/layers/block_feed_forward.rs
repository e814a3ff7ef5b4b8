//! What stands in a block as its feed-forward.

use candle_core::{ModuleT, Result, Tensor};
use candle_nn::VarBuilder;

use crate::{
    config::FeedForwardConfig,
    layers::{DropoutSource, FeedForward, MixtureOfExperts},
};

/// The feed-forward of a block: one network, or a mixture of experts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BlockFeedForward {
    /// One network.
    Dense(FeedForward),
    /// Several, of which each position uses a few.
    Experts(MixtureOfExperts),
}

impl BlockFeedForward {
    /// Takes one network, or the experts, from `vb`.
    pub fn new(config: &FeedForwardConfig, vb: VarBuilder) -> Result<Self> {
        Ok(match MixtureOfExperts::new(config, &vb)? {
            Some(experts) => Self::Experts(experts),
            None => Self::Dense(FeedForward::new(config, vb)?),
        })
    }

    /// The network, if it is one.
    pub fn dense(&self) -> Option<&FeedForward> {
        match self {
            Self::Dense(feed_forward) => Some(feed_forward),
            Self::Experts(_) => None,
        }
    }

    /// Draws dropout masks from `source` from now on.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        match self {
            Self::Dense(feed_forward) => feed_forward.set_dropout_source(source),
            Self::Experts(experts) => experts.set_dropout_source(source),
        }
    }
}

impl ModuleT for BlockFeedForward {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match self {
            Self::Dense(feed_forward) => feed_forward.forward_t(x, train),
            Self::Experts(experts) => experts.forward_t(x, train),
        }
    }
}
