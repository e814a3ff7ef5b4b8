//! What cross-attention reads.

use candle_blocks::{AttentionMask, ForwardContext};

use crate::small::numbers;

/// An evaluation in which cross-attention reads a memory of this shape.
pub fn with_memory(shape: &[usize]) -> ForwardContext {
    ForwardContext::evaluation().with_memory(numbers(shape, 5), AttentionMask::none())
}
