//! What is added to the scores, and which of them count.

use std::{fmt, ops::Range};

use super::Shape;

/// What turns products of queries and keys into scores.
///
/// The score of a query and a key is `cap(scale · q·k) + biases`, where `cap(s)` is
/// `soft_cap · tanh(s / soft_cap)`. It counts if the key is kept and within the query's reach. A key or value that
/// does not count changes no bit of the result, whatever it is, even NaN.
pub struct Scoring<'a> {
    /// Factor on the products; applied to the queries.
    pub scale: f32,
    /// Soft bound of the scaled products, if any.
    pub soft_cap: Option<f32>,
    /// Biases, added in this order.
    pub biases: &'a [Bias<'a>],
    /// For each query head a score `[n_heads]` that joins the softmax of each of its queries, and has no value.
    pub sinks: Option<&'a [f32]>,
    /// Marks `[batch, keys]`: 0 for a key that does not count. `None` keeps all keys, and is required where the
    /// sequences differ in length.
    pub keep: Option<&'a [u8]>,
    /// The positions of the keys that query number `i` of a sequence may see; positions beyond the last key do
    /// not matter.
    pub reach: &'a (dyn Fn(usize) -> Range<usize> + Sync),
}

impl fmt::Debug for Scoring<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Scoring")
            .field("scale", &self.scale)
            .field("soft_cap", &self.soft_cap)
            .field("biases", &self.biases)
            .field("sinks", &self.sinks)
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}

impl Scoring<'_> {
    /// Checks biases and marks for sequences of up to `keys` keys, of which each has `keys_of`.
    ///
    /// # Panics
    /// If a bias or the marks do not fit, or there are marks for sequences of different lengths.
    pub(crate) fn check(&self, shape: &Shape, keys: usize, keys_of: impl Fn(usize) -> usize) {
        let batch = shape.queries.batch();
        if let Some(keep) = self.keep {
            let equal = (0..batch).all(|sequence| keys_of(sequence) == keys);
            assert!(equal, "marks for sequences of different lengths");
            assert_eq!(Some(keep.len()), batch.checked_mul(keys), "marks");
        }
        let sinks = self.sinks.map_or(shape.n_heads, <[f32]>::len);
        assert_eq!(sinks, shape.n_heads, "sinks");
        for bias in self.biases {
            bias.check([batch, shape.n_heads, shape.queries.longest(), keys]);
        }
    }
}

/// A bias that is added to scores, `[batch, heads, queries, keys]` by strides. A stride of 0 shares numbers
/// along a dimension: slopes by distance (ALiBi) have one row for each head, a mask by key has one for each
/// sequence.
#[derive(Clone, Copy, Debug)]
pub struct Bias<'a> {
    /// The numbers, from those of the first sequence, head, query and key on.
    pub data: &'a [f32],
    /// Numbers from one sequence, head, query and key to the next.
    pub strides: [usize; 4],
}

impl<'a> Bias<'a> {
    fn check(&self, lengths: [usize; 4]) {
        if lengths.contains(&0) {
            return;
        }
        let last = lengths
            .iter()
            .zip(self.strides)
            .try_fold(0usize, |at, (length, stride)| {
                at.checked_add((length - 1).checked_mul(stride)?)
            });
        assert!(
            last.is_some_and(|last| last < self.data.len()),
            "a bias of {} numbers is too short",
            self.data.len()
        );
    }

    /// The same bias with sequence number `sequence` as the first.
    pub fn behind(&self, sequence: usize) -> Self {
        Self {
            data: &self.data[sequence * self.strides[0]..],
            ..*self
        }
    }

    /// The numbers from index `at` (sequence, head, query, key) on.
    pub(crate) fn from(&self, at: [usize; 4]) -> &'a [f32] {
        let index: usize = at.iter().zip(self.strides).map(|(i, s)| i * s).sum();
        &self.data[index..]
    }
}

/// The keys of a sequence that are kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept<'a> {
    /// From the first kept key to the last.
    pub(crate) range: Range<usize>,
    /// The marks of all keys, if some within `range` are dropped.
    pub(crate) marks: Option<&'a [u8]>,
}

impl<'a> Kept<'a> {
    /// The kept keys among those at `positions`.
    pub(crate) fn of(scoring: &Scoring<'a>, sequence: usize, positions: &Range<usize>) -> Self {
        let Some(keep) = scoring.keep else {
            return Self {
                range: positions.clone(),
                marks: None,
            };
        };
        let marks = &keep[sequence * positions.end..][..positions.end];
        let mut range = positions.clone();
        while !range.is_empty() && marks[range.start] == 0 {
            range.start += 1;
        }
        while !range.is_empty() && marks[range.end - 1] == 0 {
            range.end -= 1;
        }
        let has_holes = marks[range.clone()].contains(&0);
        Self {
            range,
            marks: has_holes.then_some(marks),
        }
    }

    /// The part of the range within a query's reach.
    pub(crate) fn within(&self, reach: Range<usize>) -> Range<usize> {
        let start = reach.start.clamp(self.range.start, self.range.end);
        start..reach.end.clamp(start, self.range.end)
    }

    /// Whether the key at a position of the range is kept.
    pub(crate) fn has(&self, position: usize) -> bool {
        self.marks.is_none_or(|marks| marks[position] != 0)
    }
}
