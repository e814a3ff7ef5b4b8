//! The operands of attention: how many heads, sequences and positions there are, and where they lie.

use std::ops::Range;

use crate::products::View;

/// How many of everything there are.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// The queries of each sequence.
    pub queries: Sequences<'a>,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key/value heads; each serves `n_heads / n_kv_heads` consecutive query heads.
    pub n_kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
}

impl Shape<'_> {
    /// Query heads that share a key/value head.
    pub(crate) fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// # Panics
    /// If the query heads cannot be shared out equally, or rows belong to no sequence.
    pub(crate) fn check(&self) {
        let heads = self.group() * self.n_kv_heads;
        assert_eq!(
            heads, self.n_heads,
            "query heads that no key/value head has"
        );
        self.queries.check();
    }
}

/// Which rows belong to which sequence; the sequences' rows are consecutive.
#[derive(Clone, Copy, Debug)]
pub enum Sequences<'a> {
    /// Sequences of one length.
    Equal {
        /// Number of sequences.
        batch: usize,
        /// Positions of each sequence.
        seq: usize,
    },
    /// Sequences of different lengths, without padding: row `starts[b] - starts[0]` is the first of sequence
    /// `b`, and the last number is where a further sequence would start.
    Ragged {
        /// `[batch + 1]`, ascending.
        starts: &'a [usize],
    },
}

impl<'a> Sequences<'a> {
    /// Some of the sequences, with their rows numbered from 0.
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

    /// The number of sequences.
    pub fn batch(&self) -> usize {
        match self {
            Self::Equal { batch, .. } => *batch,
            Self::Ragged { starts } => starts.len().saturating_sub(1),
        }
    }

    /// The rows of a sequence.
    pub fn rows(&self, sequence: usize) -> Range<usize> {
        match self {
            Self::Equal { seq, .. } => sequence * seq..(sequence + 1) * seq,
            Self::Ragged { starts } => {
                starts[sequence] - starts[0]..starts[sequence + 1] - starts[0]
            }
        }
    }

    /// The rows of all sequences.
    pub fn n_rows(&self) -> usize {
        match self {
            Self::Equal { batch, seq } => batch * seq,
            Self::Ragged { starts } => {
                let ends = starts.first().zip(starts.last());
                ends.map_or(0, |(first, last)| last - first)
            }
        }
    }

    /// The positions of the longest sequence.
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
            assert!(is_ragged, "sequences that start at {starts:?}");
        }
    }
}

/// Queries, keys or values where a projection left them: one row for each position, in which head `h` is the
/// columns from `offset + h · head_dim` on.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// All rows.
    pub data: &'a [f32],
    /// Numbers from one row to the next.
    pub row_stride: usize,
    /// The first column of head 0.
    pub offset: usize,
}

impl<'a> Heads<'a> {
    /// The data from a head of a row on.
    pub(crate) fn from(&self, row: usize, head: usize, head_dim: usize) -> &'a [f32] {
        &self.data[row * self.row_stride + self.offset + head * head_dim..]
    }

    /// `rows` rows of a head from row `first` on, as `[rows, head_dim]`.
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

    /// # Panics
    /// If `rows` rows with heads of `width` columns in all reach beyond the data.
    pub(crate) fn check(&self, rows: usize, width: usize) {
        let end = rows.checked_sub(1).map_or(Some(0), |last| {
            let start = last.checked_mul(self.row_stride)?;
            start.checked_add(self.offset)?.checked_add(width)
        });
        assert!(
            end.is_some_and(|end| end <= self.data.len()),
            "heads beyond their data"
        );
    }
}
