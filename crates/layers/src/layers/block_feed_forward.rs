//! The feed-forward of a block: a single network or a mixture of experts.

use candle_core::{ModuleT, Result, Tensor};

use crate::config::{FeedForwardConfig, FeedForwardForm};
use crate::layers::{FeedForward, MixtureOfExperts, ParameterSource, visit::parts};
use crate::ops::Value;

/// The feed-forward of a block: a single network or a mixture of experts.
/// [`TransformerBlock::feed_forward`](crate::TransformerBlock::feed_forward) returns it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BlockFeedForward {
    /// A single network.
    Dense(FeedForward),
    /// A mixture of experts. Each position uses a few experts.
    Experts(MixtureOfExperts),
    /// No feed-forward, in a block that is a mixer alone.
    Absent {
        /// The width of the block's input and output.
        d_model: usize,
    },
}

impl BlockFeedForward {
    /// Creates the network or the experts with parameters from `vb`.
    pub fn new<'p>(config: &FeedForwardConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let d_model = config.d_model;
        Ok(match config.experts {
            _ if config.form == FeedForwardForm::Absent => Self::Absent { d_model },
            Some(_) => Self::Experts(MixtureOfExperts::new(config, vb)?),
            None => Self::Dense(FeedForward::new(config, vb)?),
        })
    }

    /// Returns the network, or `None` if it is a mixture of experts or absent.
    pub fn dense(&self) -> Option<&FeedForward> {
        match self {
            Self::Dense(feed_forward) => Some(feed_forward),
            Self::Experts(_) | Self::Absent { .. } => None,
        }
    }

    /// Returns the input width and the output width.
    pub(crate) fn widths(&self) -> [usize; 2] {
        match self {
            Self::Dense(feed_forward) => feed_forward.widths(),
            Self::Experts(experts) => [experts.router().shape().1; 2],
            Self::Absent { d_model } => [*d_model; 2],
        }
    }

    /// Returns true if the weights are packed.
    pub(super) fn is_packed(&self) -> bool {
        match self {
            Self::Dense(feed_forward) => feed_forward.packed.is_some(),
            Self::Experts(experts) => experts.packed.is_some(),
            Self::Absent { .. } => false,
        }
    }

    /// Computes the output and adds it to `residual`.
    pub(super) fn apply(&self, x: &Value, residual: Option<&Value>, train: bool) -> Result<Value> {
        match self {
            Self::Dense(feed_forward) => feed_forward.apply(x, residual, train),
            Self::Experts(experts) => experts.apply(x, residual, train),
            Self::Absent { .. } => match residual {
                Some(residual) => Ok(residual.clone()),
                None => x.zeros(),
            },
        }
    }

    /// Computes the output in evaluation mode.
    ///
    /// # Shapes
    /// `[.., d_model]` of rank 1 or more, to the same shape.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_t(x, false)
    }
}

parts!(BlockFeedForward:
    Self::Dense(of) => [of] [],
    Self::Experts(of) => [of] [],
    Self::Absent { .. } => [] []);

impl ModuleT for BlockFeedForward {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match self {
            Self::Dense(feed_forward) => feed_forward.forward_t(x, train),
            Self::Experts(experts) => experts.forward_t(x, train),
            Self::Absent { .. } => x.zeros_like(),
        }
    }
}
