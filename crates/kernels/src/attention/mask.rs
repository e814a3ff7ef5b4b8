//! Scaling and masks for attention scores.

use std::{fmt, ops::Range};

use super::{Bias, RelativeScores, Shape};

/// Parameters that convert query-key products to scores.
///
/// The score for a query and a key is `cap(scale · q·k) + biases` with `cap(s) = soft_cap · tanh(s / soft_cap)`. A
/// key is visible if the key mask keeps it and `reach` includes it. Hidden keys and values change no bit in the
/// result, even if they are NaN.
pub struct Scoring<'a> {
    /// A factor on the products, applied to the queries.
    pub scale: f32,
    /// A soft cap on the scaled products.
    pub soft_cap: Option<f32>,
    /// Terms by distance, added before the biases. Then the keys are the queries' positions, in as many heads.
    pub relative: Option<RelativeScores<'a>>,
    /// Biases, added in this order.
    pub biases: &'a [Bias<'a>],
    /// Attention sinks: for each query head one score `[n_heads]` that takes part in the softmax, but has no value.
    pub sinks: Option<&'a [f32]>,
    /// A key mask `[batch, keys]`: 0 hides a key. `None` keeps all keys, and is required if sequences differ in
    /// length and have no `origins`.
    pub keep: Option<&'a [u8]>,
    /// Returns the key positions visible to a query, given its sequence and its number in it. Positions beyond the
    /// last key are ignored.
    pub reach: &'a (dyn Fn(usize, usize) -> Range<usize> + Sync),
    /// Each sequence's origin in `keep` and `biases`. `None` if these begin with every sequence's first query and key.
    pub origins: Option<&'a [Origin]>,
}

/// The place of a sequence's first query and first key in biases and key mask, where padding precedes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The first query's row.
    pub query: usize,
    /// The first key's column.
    pub key: usize,
}

impl fmt::Debug for Scoring<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Scoring")
            .field("scale", &self.scale)
            .field("soft_cap", &self.soft_cap)
            .field("relative", &self.relative)
            .field("biases", &self.biases)
            .field("sinks", &self.sinks)
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}

impl Scoring<'_> {
    /// Checks biases and key mask for sequences with up to `keys` keys. Sequence `i` has `keys_of(i)` keys.
    ///
    /// # Panics
    /// If a bias or the mask has the wrong length, or there is a mask for sequences with different lengths.
    pub(crate) fn check(&self, shape: &Shape, keys: usize, keys_of: impl Fn(usize) -> usize) {
        let batch = shape.queries.batch();
        let origins = self.origins.map_or(batch, <[Origin]>::len);
        assert_eq!(origins, batch, "origin count");
        // Beyond the padding before each sequence.
        let end = |of: &dyn Fn(usize) -> usize| (0..batch).map(of).max().unwrap_or(0);
        let keys = match self.origins {
            Some(_) => end(&|sequence| self.origin(sequence).key + keys_of(sequence)),
            None => keys,
        };
        let queries =
            end(&|sequence| self.origin(sequence).query + shape.queries.rows(sequence).len());
        if let Some(keep) = self.keep {
            let equal =
                (0..batch).all(|sequence| self.origin(sequence).key + keys_of(sequence) == keys);
            assert!(equal, "a key mask requires sequences with equal lengths");
            assert_eq!(Some(keep.len()), batch.checked_mul(keys), "key mask length");
        }
        let sinks = self.sinks.map_or(shape.n_heads, <[f32]>::len);
        assert_eq!(sinks, shape.n_heads, "sink count");
        if let Some(relative) = self.relative {
            assert_eq!(shape.n_heads, shape.n_kv_heads, "heads of relative terms");
            relative.check(keys, shape.queries.n_rows(), shape.n_heads);
        }
        for bias in self.biases {
            let lengths = [batch, shape.n_heads, queries, keys];
            bias.layout.check(lengths, bias.data.len());
        }
    }

    /// Returns a sequence's origin.
    pub(crate) fn origin(&self, sequence: usize) -> Origin {
        self.origins
            .map_or(Origin::default(), |origins| origins[sequence])
    }
}

/// A sequence's key mask.
#[derive(Clone, Debug)]
pub(crate) struct KeyMask<'a> {
    /// The range from the first visible key to the last.
    pub(crate) range: Range<usize>,
    /// The mask for all keys, if it hides some within `range`.
    pub(crate) mask: Option<&'a [u8]>,
}

impl<'a> KeyMask<'a> {
    /// Creates the key mask for the keys at `positions`.
    pub(crate) fn new(scoring: &Scoring<'a>, sequence: usize, positions: &Range<usize>) -> Self {
        let Some(keep) = scoring.keep else {
            return Self {
                range: positions.clone(),
                mask: None,
            };
        };
        let first = scoring.origin(sequence).key;
        let mask = &keep[sequence * (first + positions.end) + first..][..positions.end];
        let range = without_hidden_ends(mask, positions.clone());
        let has_holes = mask[range.clone()].contains(&0);
        Self {
            range,
            mask: has_holes.then_some(mask),
        }
    }

    /// Intersects the range with a query's reach.
    pub(crate) fn within(&self, reach: Range<usize>) -> Range<usize> {
        let start = reach.start.clamp(self.range.start, self.range.end);
        start..reach.end.clamp(start, self.range.end)
    }

    /// Returns whether the key at a position within the range is visible.
    pub(crate) fn has(&self, position: usize) -> bool {
        self.mask.is_none_or(|mask| mask[position] != 0)
    }
}

/// Removes the positions at both ends of a range that a mask hides.
pub(crate) fn without_hidden_ends(mask: &[u8], mut range: Range<usize>) -> Range<usize> {
    while !range.is_empty() && mask[range.start] == 0 {
        range.start += 1;
    }
    while !range.is_empty() && mask[range.end - 1] == 0 {
        range.end -= 1;
    }
    range
}
