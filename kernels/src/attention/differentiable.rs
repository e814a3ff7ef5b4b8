//! Attention with a backward pass, in f32 or f64: `dropout(softmax(cap(scale · q·kᵀ) + biases))·v` per head.
//!
//! Nothing of the size of the scores is kept between the passes: the backward pass computes the probabilities again,
//! as FlashAttention does (Dao et al. 2022, <https://arxiv.org/abs/2205.14135>). A task is one key/value head of one
//! sequence, with the query heads that share it; its scores are all that exists of them at a time.

use std::ops::Range;

use crate::products::View;
use crate::vectors::{Slice, SliceMut, Stored};

/// The heads of queries, keys or values: a row for each position, in which head `h` is the columns from
/// `offset + h · head_dim` on.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// All rows.
    pub data: Slice<'a>,
    /// Positions of each sequence.
    pub seq: usize,
    /// Number of heads.
    pub heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Numbers from one row to the next.
    pub row_stride: usize,
    /// The first column of head 0.
    pub offset: usize,
}

impl<'a> HeadRows<'a> {
    /// A head of a sequence, `[seq, head_dim]`.
    pub(super) fn head<T: Stored>(&self, sequence: usize, head: usize) -> View<'a, T> {
        let data = T::of_slice(self.data);
        let start = sequence * self.seq * self.row_stride + self.offset + head * self.head_dim;
        View::new(
            data.get(start..).unwrap_or(&[]),
            (self.seq, self.head_dim),
            (self.row_stride, 1),
        )
    }
}

/// A bias that is added to scores, `[batch, heads, queries, keys]` by strides; a stride of 0 shares numbers along a
/// dimension.
#[derive(Clone, Copy, Debug)]
pub struct ScoreBias<'a> {
    /// The numbers.
    pub data: Slice<'a>,
    /// Numbers from one sequence, head, query and key to the next.
    pub strides: [usize; 4],
}

/// Which probabilities are dropped in training.
#[derive(Clone, Copy, Debug)]
pub struct Dropped<'a> {
    /// `[batch, heads, queries, keys]`, 0 for what is dropped.
    pub keep: &'a [u8],
    /// What the others are divided by: one less the probability of dropping.
    pub divisor: f64,
}

/// One attention.
pub struct Differentiable<'a> {
    /// Number of sequences.
    pub batch: usize,
    /// Query heads that share a key/value head are consecutive.
    pub query: HeadRows<'a>,
    /// As many heads as the values have; their number divides that of the queries.
    pub key: HeadRows<'a>,
    /// Their heads may be of other dimensions than those of the keys.
    pub value: HeadRows<'a>,
    /// Factor on the queries.
    pub scale: f64,
    /// Soft bound of the scaled products: `cap(s) = soft_cap · tanh(s / soft_cap)`.
    pub soft_cap: Option<f64>,
    /// Added in this order.
    pub biases: &'a [ScoreBias<'a>],
    /// For each query head a score `[heads]` that joins the softmax of each of its queries, and has no value.
    pub sinks: Option<Slice<'a>>,
    /// Marks `[batch, keys]`: 0 for a key that no query sees.
    pub keep: Option<&'a [u8]>,
    /// The positions of the keys that query number `i` of a sequence may see.
    pub reach: &'a (dyn Fn(usize) -> Range<usize> + Sync),
    /// Dropout of the probabilities.
    pub dropped: Option<Dropped<'a>>,
}

/// Where the gradients go: each in rows without gaps, all heads side by side.
pub struct AttentionGradients<'a> {
    /// Of the queries.
    pub query: SliceMut<'a>,
    /// Of the keys.
    pub key: SliceMut<'a>,
    /// Of the values.
    pub value: SliceMut<'a>,
    /// Of each bias, added to what is there; `None` where it is not wanted. In the bias's own numbers.
    pub biases: Vec<Option<SliceMut<'a>>>,
    /// Of the sinks, added to what is there; `None` where it is not wanted.
    pub sinks: Option<SliceMut<'a>>,
}
