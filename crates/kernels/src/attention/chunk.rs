//! A chunk of positions in one head's keys and values, in the packed layout that the micro-kernel reads.
//!
//! ```text
//! keys     [positions / width][head_dim / group][width]    right operand of queries · keysᵀ: a column is a position
//! values   [head_dim / width][positions / group][width]    right operand of exponentials · values: a column is a dimension
//! ```
//!
//! Both are panels as wide as a tile. A word holds one [group](super::super::format::Format::GROUP): dimensions in
//! keys, positions in values. Quotients are rounded up, and the last value panel is padded with zeros.

use std::ops::Range;

use super::Operand;

/// A chunk's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Tile columns, and panel columns. Divides `positions`.
    pub(crate) width: usize,
    /// Dimensions per head.
    pub(crate) head_dim: usize,
    /// Positions per chunk.
    pub(crate) positions: usize,
    /// Values per word.
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

    /// Returns how many value panels a chunk has.
    pub(crate) fn value_panels(self) -> usize {
        self.head_dim.div_ceil(self.width)
    }

    /// Returns how many words the keys take.
    fn keys_len(self) -> usize {
        self.positions * self.head_dim.div_ceil(self.group)
    }

    /// Returns how many words a value panel takes.
    pub(crate) fn value_panel_len(self) -> usize {
        self.positions / self.group * self.width
    }

    /// Returns how many words a chunk takes.
    pub(crate) fn len(self) -> usize {
        self.keys_len() + self.value_panels() * self.value_panel_len()
    }

    /// Returns the words in the key panel that holds a position in the chunk.
    pub(crate) fn key_panel(self, position: usize) -> Range<usize> {
        let len = self.width * self.head_dim.div_ceil(self.group);
        let start = position / self.width * len;
        start..start + len
    }

    /// Returns the words for some positions in a value panel, rounded outwards to whole words.
    pub(crate) fn value_panel(self, panel: usize, positions: &Range<usize>) -> Range<usize> {
        let start = self.keys_len() + panel * self.value_panel_len();
        let word = |position: usize| start + position * self.width;
        word(positions.start / self.group)..word(positions.end.div_ceil(self.group))
    }

    /// Returns the word and the element in it that holds a number of a key and of a value, at a position in the chunk.
    pub(crate) fn places(self, position: usize, dimension: usize) -> [(usize, usize); 2] {
        let (width, group) = (self.width, self.group);
        let key = self.key_panel(position).start + dimension / group * width + position % width;
        let value = self.value_panel(dimension / width, &(position..position + 1));
        [
            (key, dimension % group),
            (value.start + dimension % width, position % group),
        ]
    }
}

/// A read-only packed chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk<'a, F: Operand> {
    pub(crate) layout: Layout,
    pub(crate) memory: &'a [F::Word],
    pub(crate) values: Values,
}

/// True if a chunk's values are finite, so that rows may multiply hidden values by zero weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// All values are finite.
    Finite,
    /// Some values are NaN or infinite, and zero times these is NaN.
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
    /// Returns the key panel that holds a position in the chunk.
    pub(crate) fn keys(&self, position: usize) -> &'a [F::Word] {
        &self.memory[self.layout.key_panel(position)]
    }

    /// Returns the values at some positions in one dimension panel. The first position begins a word.
    pub(crate) fn values(&self, panel: usize, positions: &Range<usize>) -> &'a [F::Word] {
        &self.memory[self.layout.value_panel(panel, positions)]
    }
}
