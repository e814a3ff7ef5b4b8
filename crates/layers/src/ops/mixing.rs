//! The parameters of attention.

use candle_core::Tensor;

use super::bias_tensor::BiasTensor;
use super::constants::Constants;
use super::value::Value;
use super::visible::Visible;

/// The parameters of an attention call.
#[derive(Clone, Copy)]
pub(crate) struct Mixing<'a> {
    /// Sequence count.
    pub batch: usize,
    /// Queries per sequence.
    pub queries: usize,
    /// Keys per sequence.
    pub keys: usize,
    /// Query head count, a multiple of `n_kv_heads`. Heads that share a key/value head are consecutive.
    pub n_heads: usize,
    /// Key and value head count.
    pub n_kv_heads: usize,
    /// A factor on the queries.
    pub scale: f64,
    /// A soft cap on the scores: `soft_cap · tanh(score / soft_cap)`.
    pub soft_cap: Option<f64>,
    /// Biases that are added to the scores in this order.
    pub biases: &'a [BiasTensor],
    /// Relative position scores, which are added before the biases.
    pub relative: Option<Relative<'a>>,
    /// Attention sinks: for each query head one score that takes part in the softmax but has no value, `[n_heads]`,
    /// in the queries' type.
    pub sinks: Option<&'a Tensor>,
    /// The keys visible to each query.
    pub visible: &'a Visible<'a>,
    /// True if a bias may hide keys with `-inf`.
    pub has_mask: bool,
    /// Device constants that all attention layers in a pass share.
    pub constants: &'a Constants,
    /// A dropout mask `[batch, n_heads, queries, keys]`, and the dropout probability.
    pub dropout: Option<(&'a Tensor, f64)>,
}

/// Scores by relative position: the sum of `scale · content · table[row]ᵀ` over the terms, per head, where `row` depends on the
/// distance between query and key.
#[derive(Clone, Copy)]
#[doc(hidden)]
pub struct Relative<'a> {
    /// The terms, added in this order.
    pub terms: &'a [Term<Content, Value>],
    /// The tables' row for each distance `query - key`, from `1 - seq` to `seq - 1`.
    pub rows: &'a [u32],
    /// A factor on the products.
    pub scale: f64,
    /// Identifies the map.
    pub name: &'a str,
}

/// A content, and the table by distance that it is multiplied by.
#[derive(Clone)]
#[doc(hidden)]
pub struct Term<C, T> {
    pub content: C,
    /// `[rows, n_heads · width]`.
    pub table: T,
}

/// The content in a term. Each head has as many columns of it as of the table.
#[derive(Clone)]
#[doc(hidden)]
pub enum Content {
    /// The queries, multiplied by position keys.
    Queries,
    /// The keys, multiplied by position queries.
    Keys,
    /// Other rows for the queries' positions, `[.., n_heads · width]`.
    OfQueries(Value),
}
