//! Stacks with rotary embeddings by the rows and columns of an image's patches.

use candle_blocks::{ForwardContext, Position, StackConfig, config::RotaryAxes};

/// Returns the number of tokens before the patches, if the stack depends on patches.
pub fn n_front(config: &StackConfig) -> Option<usize> {
    match config.blocks[0].attention().map(|of| &of.position) {
        Ok(Position::Rotary(rotary)) => match rotary.axes {
            Some(RotaryAxes::Patches(axes)) => Some(axes.n_front),
            _ => None,
        },
        _ => None,
    }
}

/// Returns a context with `seq` positions, whose patches are one row of an image.
pub fn in_one_row(context: ForwardContext, config: &StackConfig, seq: usize) -> ForwardContext {
    match n_front(config) {
        Some(n_front) => context.with_patches([1, seq - n_front]),
        None => context,
    }
}
