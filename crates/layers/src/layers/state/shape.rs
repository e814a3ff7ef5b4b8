//! The shape that a packed attention's cache has, and another cache's that does not fit.

use candle_blocks_kernels::attention::PanelShape;

/// The kind and shape of the rows in a layer's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cached {
    /// Keys and values.
    Panels(CacheShape),
    /// Latents with shared keys, as rows of one head.
    Latents(CacheShape),
}

/// The shape of a layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CacheShape {
    /// The number of sequences.
    pub batch: usize,
    /// The shape of each sequence.
    pub sequence: PanelShape,
}

pub(super) fn misfit(theirs: Cached, ours: Cached) -> candle_core::Error {
    let words = |cached: Cached| match cached {
        Cached::Panels(CacheShape { batch, sequence }) => format!(
            "a batch of {batch} with {} key/value heads of {} in {}",
            sequence.n_kv_heads, sequence.head_dim, sequence.stored
        ),
        Cached::Latents(CacheShape { batch, sequence }) => format!(
            "a batch of {batch} with latents of {} in {}",
            sequence.head_dim, sequence.stored
        ),
    };
    candle_core::Error::msg(format!(
        "the cache holds {}, but this attention has {}; make another cache with new_cache",
        words(theirs),
        words(ours)
    ))
}
