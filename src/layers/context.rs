//! What a forward pass needs beside its input.

use crate::layers::AttentionMask;

/// Mask and mode of one forward pass, the same for every block of a stack.
///
/// ```
/// use candle_blocks::{AttentionMask, ForwardContext};
/// let plain = ForwardContext::evaluation();
/// assert!(!plain.train());
/// let training = ForwardContext::training().with_mask(AttentionMask::none());
/// assert!(training.train());
/// ```
#[derive(Clone, Debug, Default)]
pub struct ForwardContext {
    mask: AttentionMask,
    train: bool,
}

impl ForwardContext {
    /// Dropout off, nothing masked.
    pub fn evaluation() -> Self {
        Self::default()
    }

    /// Dropout on, nothing masked.
    pub fn training() -> Self {
        Self::evaluation().with_train(true)
    }

    /// With the given mask.
    pub fn with_mask(mut self, mask: AttentionMask) -> Self {
        self.mask = mask;
        self
    }

    /// With dropout on or off.
    pub fn with_train(mut self, train: bool) -> Self {
        self.train = train;
        self
    }

    /// The mask.
    pub fn mask(&self) -> &AttentionMask {
        &self.mask
    }

    /// Whether dropout is on.
    pub fn train(&self) -> bool {
        self.train
    }
}
