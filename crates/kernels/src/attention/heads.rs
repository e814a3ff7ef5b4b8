//! Operands for attention: the head, sequence and position counts, and the memory layout.

use std::ops::Range;

use crate::products::View;

/// The shape of an attention call.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// The queries in each sequence.
    pub queries: Sequences<'a>,
    /// Query head count.
    pub n_heads: usize,
    /// Key/value head count. Each one serves `n_heads / n_kv_heads` consecutive query heads.
    pub n_kv_heads: usize,
    /// Dimensions per head.
    pub head_dim: usize,
}

impl Shape<'_> {
    /// Returns how many query heads share a key/value head.
    pub(crate) fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Checks the shape.
    ///
    /// # Panics
    /// If key/value heads cannot serve equally many query heads, or rows belong to no sequence.
    pub(crate) fn check(&self) {
        let heads = self.group() * self.n_kv_heads;
        assert_eq!(heads, self.n_heads, "value head has/value head has");
        self.queries.check();
    }
}

/// The assignment of rows to sequences. Each sequence's rows are consecutive.
#[derive(Clone, Copy, Debug)]
pub enum Sequences<'a> {
    /// Sequences with equal lengths.
    Equal {
        /// Sequence count.
        batch: usize,
        /// Positions per sequence.
        seq: usize,
    },
    /// Sequences with different lengths, without padding. Sequence `b` starts at row `starts[b] - starts[0]`, and
    /// the last element is where the next sequence would start.
    Ragged {
        /// Start rows, `[batch + 1]`, ascending.
        starts: &'a [usize],
    },
}

impl<'a> Sequences<'a> {
    /// Returns some sequences, with rows numbered from 0.
    pub fn part(&self, sequences: Range<usize>) -> Sequences<'a> {
        match *self {
            Self::Equal { seq, .. } => Self::Equal {
                batch: sequences.len(),
                seq,
            },
            Self::Ragged { starts } => Self::Ragged {
                starts: &starts[sequences.start..=sequences.end],
            },
        }
    }

    /// Returns the sequence count.
    pub fn batch(&self) -> usize {
        match self {
            Self::Equal { batch, .. } => *batch,
            Self::Ragged { starts } => starts.len().saturating_sub(1),
        }
    }

    /// Returns one sequence's rows.
    pub fn rows(&self, sequence: usize) -> Range<usize> {
        match self {
            Self::Equal { seq, .. } => sequence * seq..(sequence + 1) * seq,
            Self::Ragged { starts } => {
                starts[sequence] - starts[0]..starts[sequence + 1] - starts[0]
            }
        }
    }

    /// Returns the total row count.
    pub fn n_rows(&self) -> usize {
        match self {
            Self::Equal { batch, seq } => batch * seq,
            Self::Ragged { starts } => {
                let ends = starts.first().zip(starts.last());
                ends.map_or(0, |(first, last)| last - first)
            }
        }
    }

    /// Returns the longest sequence's length.
    pub fn longest(&self) -> usize {
        match self {
            Self::Equal { seq, .. } => *seq,
            Self::Ragged { starts } => {
                let lengths = starts.windows(2).map(|pair| pair[1] - pair[0]);
                lengths.max().unwrap_or(0)
            }
        }
    }

    pub(crate) fn check(&self) {
        if let Self::Ragged { starts } = self {
            let is_ragged = !starts.is_empty() && starts.is_sorted();
            assert!(
                is_ragged,
                "sequence starts must be ascending, found {starts:?}"
            );
        }
    }
}

/// Queries, keys or values as a projection wrote them: one row per position, in which head `h` starts at column
/// `offset + h · head_dim`.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// All rows.
    pub data: &'a [f32],
    /// The distance between rows, in elements.
    pub row_stride: usize,
    /// Head 0's first column.
    pub offset: usize,
}

impl<'a> Heads<'a> {
    /// Returns the data from one row's head on.
    pub(crate) fn from(&self, row: usize, head: usize, head_dim: usize) -> &'a [f32] {
        &self.data[row * self.row_stride + self.offset + head * head_dim..]
    }

    /// Returns `rows` rows in one head, starting at row `first`, as `[rows, head_dim]`.
    pub(crate) fn view(
        &self,
        first: usize,
        rows: usize,
        head: usize,
        head_dim: usize,
    ) -> View<'a, f32> {
        let data = if rows == 0 {
            &[]
        } else {
            self.from(first, head, head_dim)
        };
        View::new(data, (rows, head_dim), (self.row_stride, 1))
    }

    /// Checks the length.
    ///
    /// # Panics
    /// If `rows` rows, with `width` columns in all heads together, exceed the data.
    pub(crate) fn check(&self, rows: usize, width: usize) {
        let end = rows.checked_sub(1).map_or(Some(0), |last| {
            let start = last.checked_mul(self.row_stride)?;
            start.checked_add(self.offset)?.checked_add(width)
        });
        assert!(
            end.is_some_and(|end| end <= self.data.len()),
            "attention heads exceed their data"
        );
    }
}
