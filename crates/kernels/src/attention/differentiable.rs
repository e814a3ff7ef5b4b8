//! Attention with a backward pass, in f32 or f64: `dropout(softmax(cap(scale · q·kᵀ) + biases))·v` per head.
//!
//! The scores are in memory for a tile of queries and a block of keys at a time. Nothing as large as the scores is kept
//! between the passes. The backward pass recomputes the probabilities, as FlashAttention does (Dao et al. 2022,
//! <https://arxiv.org/abs/2205.14135>).

use std::ops::Range;

use super::{BiasLayout, HeadRows, RelativeScores};
use crate::vectors::{Slice, SliceMut};

/// A bias that is added to scores.
#[derive(Clone, Copy, Debug)]
pub struct ScoreBias<'a> {
    /// The elements.
    pub data: Slice<'a>,
    /// The place of each score's element.
    pub layout: BiasLayout,
}

/// A dropout mask for the probabilities.
#[derive(Clone, Copy, Debug)]
pub struct Dropped<'a> {
    /// `[batch, heads, queries, keys]`, 0 for dropped probabilities.
    pub keep: &'a [u8],
    /// The divisor for the others: one minus the dropout probability.
    pub divisor: f64,
}

/// The inputs to one differentiable attention call.
pub struct Differentiable<'a> {
    /// Sequence count.
    pub batch: usize,
    /// Queries. Query heads that share a key/value head are consecutive.
    pub query: HeadRows<'a>,
    /// Keys, with as many heads as the values. Their head count divides the queries' head count.
    pub key: HeadRows<'a>,
    /// Values. Their head dimension may differ from the keys'.
    pub value: HeadRows<'a>,
    /// A factor on the queries.
    pub scale: f64,
    /// A soft cap on the scaled products: `cap(s) = soft_cap · tanh(s / soft_cap)`.
    pub soft_cap: Option<f64>,
    /// Terms by distance, added before the biases. Then there are as many keys as queries, in as many heads.
    pub relative: Option<RelativeScores<'a>>,
    /// Biases, added in this order.
    pub biases: &'a [ScoreBias<'a>],
    /// Attention sinks: for each query head one score `[heads]` that takes part in the softmax, but has no value.
    pub sinks: Option<Slice<'a>>,
    /// A key mask `[batch, keys]`: 0 hides a key from all queries.
    pub keep: Option<&'a [u8]>,
    /// Returns the key positions visible to query number `i` in a sequence.
    pub reach: &'a (dyn Fn(usize) -> Range<usize> + Sync),
    /// Dropout for the probabilities.
    pub dropped: Option<Dropped<'a>>,
}

/// Results of the forward pass that the backward pass reads.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// The result.
    pub y: Slice<'a>,
    /// The rows' normalizers.
    pub normalizers: Slice<'a>,
}

/// Destinations for the gradients, each in contiguous rows with adjacent heads.
pub struct AttentionGradients<'a> {
    /// The queries' gradient.
    pub query: SliceMut<'a>,
    /// The keys' gradient.
    pub key: SliceMut<'a>,
    /// The values' gradient.
    pub value: SliceMut<'a>,
    /// The gradients of each relative term: its content's rows, and the table's, which are zeros before.
    pub relative: Vec<[SliceMut<'a>; 2]>,
    /// Each bias's gradient, added to existing contents, in the bias's own layout. `None` skips a gradient.
    pub biases: Vec<Option<SliceMut<'a>>>,
    /// The sinks' gradient, added to existing contents. `None` skips it.
    pub sinks: Option<SliceMut<'a>>,
}
