//! The encoder output that cross-attention reads.

use candle_blocks::{AttentionMask, ForwardContext};

use crate::{small::numbers, small_on_device};

/// Returns a context for evaluation with an encoder output of this shape, on the CPU.
pub fn with_memory(shape: &[usize]) -> ForwardContext {
    ForwardContext::evaluation().with_encoder_output(numbers(shape, 5), AttentionMask::none())
}

/// Returns the same context on the device under test.
pub fn with_memory_on_device(shape: &[usize]) -> ForwardContext {
    let memory = small_on_device::numbers(shape, 5);
    ForwardContext::evaluation().with_encoder_output(memory, AttentionMask::none())
}
