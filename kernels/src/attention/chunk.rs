//! One chunk of positions of one head's keys and values, packed as the micro-kernel reads them.
//!
//! ```text
//! keys     [positions / width][head_dim / group][width]    right operand of queries · keysᵀ: a column is a position
//! values   [head_dim / width][positions / group][width]    right operand of exponentials · values: a column is a dimension
//! ```
//!
//! Both are panels as wide as a tile, and a word holds the terms of one
//! [group](super::super::format::Format::GROUP): of dimensions in keys, of positions in values. The quotients
//! are rounded up; the last panel of values is padded with zeros.

use std::ops::Range;

use super::Operand;

/// The layout of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Columns of a tile, and so of a panel; divides `positions`.
    pub(crate) width: usize,
    /// Dimensions of a head.
    pub(crate) head_dim: usize,
    /// Positions of a chunk.
    pub(crate) positions: usize,
    /// Terms in a word.
    group: usize,
}

impl Layout {
    pub(crate) fn new<F: Operand>(width: usize, head_dim: usize) -> Self {
        assert!(F::CHUNK.is_multiple_of(width) && width.is_multiple_of(F::GROUP));
        Self {
            width,
            head_dim,
            positions: F::CHUNK,
            group: F::GROUP,
        }
    }

    /// Number of panels of values.
    pub(crate) fn value_panels(self) -> usize {
        self.head_dim.div_ceil(self.width)
    }

    /// Words of all keys of a chunk.
    fn keys_len(self) -> usize {
        self.positions * self.head_dim.div_ceil(self.group)
    }

    /// Words of one panel of values.
    pub(crate) fn value_panel_len(self) -> usize {
        self.positions / self.group * self.width
    }

    /// Words of a chunk.
    pub(crate) fn len(self) -> usize {
        self.keys_len() + self.value_panels() * self.value_panel_len()
    }

    /// The words of the panel of keys that holds a position of the chunk.
    pub(crate) fn key_panel(self, position: usize) -> Range<usize> {
        let len = self.width * self.head_dim.div_ceil(self.group);
        let start = position / self.width * len;
        start..start + len
    }

    /// The words of some positions of the chunk in a panel of values, rounded outwards to whole words.
    pub(crate) fn value_panel(self, panel: usize, positions: &Range<usize>) -> Range<usize> {
        let start = self.keys_len() + panel * self.value_panel_len();
        let word = |position: usize| start + position * self.width;
        word(positions.start / self.group)..word(positions.end.div_ceil(self.group))
    }
}

/// A packed chunk to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk<'a, F: Operand> {
    pub(crate) layout: Layout,
    pub(crate) memory: &'a [F::Word],
    pub(crate) values: Values,
}

/// Whether the product may multiply values by the zero weights of rows that do not see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// It may: all values are finite.
    Finite,
    /// It may not: some are NaN or infinite, and zero times these is NaN.
    NonFinite,
}

impl Values {
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Finite, Self::Finite) => Self::Finite,
            _ => Self::NonFinite,
        }
    }
}

impl<'a, F: Operand> Chunk<'a, F> {
    /// The panel of keys that holds a position of the chunk.
    pub(crate) fn keys(&self, position: usize) -> &'a [F::Word] {
        &self.memory[self.layout.key_panel(position)]
    }

    /// The values at some positions of the chunk, in one panel of dimensions. The first position begins a word.
    pub(crate) fn values(&self, panel: usize, positions: &Range<usize>) -> &'a [F::Word] {
        &self.memory[self.layout.value_panel(panel, positions)]
    }
}
