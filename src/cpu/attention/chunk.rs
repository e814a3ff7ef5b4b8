//! Keys and values of [`CHUNK`] positions of one head, as the micro-kernel reads them.
//!
//! Keys lie in panels as wide as a tile, `[panels of positions][head_dim][width]`: the right operand of
//! the product with the queries. Values lie in panels too, `[panels of dimensions][CHUNK][width]`, the
//! last one filled with zeros: that of the product with the exponentials.

use std::ops::Range;

use super::super::{
    arch::{Task, Vectors},
    pack::PackColumns,
    tile::{CHUNK, WIDTH},
    view::View,
};

/// Where everything is in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Columns of a tile; they divide [`CHUNK`].
    pub(super) width: usize,
    /// Width of a head.
    pub(super) head_dim: usize,
}

impl Layout {
    pub(super) fn new<V: Vectors<f32>>(head_dim: usize) -> Self {
        const { assert!(CHUNK.is_multiple_of(WIDTH * V::LANES)) }
        let width = WIDTH * V::LANES;
        Self { width, head_dim }
    }

    /// Panels of dimensions.
    pub(super) fn value_panels(self) -> usize {
        self.head_dim.div_ceil(self.width)
    }

    /// Numbers of a chunk's keys.
    fn keys_len(self) -> usize {
        CHUNK * self.head_dim
    }

    /// Numbers of a chunk.
    pub(super) fn len(self) -> usize {
        self.keys_len() + CHUNK * self.value_panels() * self.width
    }

    /// Where a chunk's panel of keys is, that begins at a position.
    fn key_panel(self, position: usize) -> Range<usize> {
        let start = position / self.width * self.width * self.head_dim;
        start..start + self.width * self.head_dim
    }

    /// Where a panel of a chunk's values at some positions is.
    fn value_panel(self, panel: usize, positions: &Range<usize>) -> Range<usize> {
        let start = self.keys_len() + panel * CHUNK * self.width;
        start + positions.start * self.width..start + positions.end * self.width
    }
}

/// A chunk to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk<'a> {
    pub(super) layout: Layout,
    pub(super) memory: &'a [f32],
    pub(super) values: Values,
}

/// Whether values may be multiplied by the zeros of those who do not see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// All are finite.
    Finite,
    /// Some are NaN or infinite, and zero times these is NaN.
    Spoiled,
}

impl Values {
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Finite, Self::Finite) => Self::Finite,
            _ => Self::Spoiled,
        }
    }
}

impl<'a> Chunk<'a> {
    /// The keys of the panel that holds a position of the chunk.
    pub(super) fn keys(&self, position: usize) -> &'a [f32] {
        &self.memory[self.layout.key_panel(position)]
    }

    /// The values at some positions of the chunk, of a panel of dimensions.
    pub(super) fn values(&self, panel: usize, positions: &Range<usize>) -> &'a [f32] {
        &self.memory[self.layout.value_panel(panel, positions)]
    }
}

/// Writes rows of keys and values to a chunk, from a position of the chunk on.
pub(super) struct Fill<'a> {
    pub(super) layout: Layout,
    /// `[positions, head_dim]`; nothing lies behind the last row that is written.
    pub(super) key: View<'a, f32>,
    /// As `key`.
    pub(super) value: View<'a, f32>,
    /// The rows to write. They fit into the chunk.
    pub(super) rows: Range<usize>,
    /// The first row's position in the chunk.
    pub(super) position: usize,
    pub(super) memory: &'a mut [f32],
    /// What becomes known of the values.
    pub(super) values: &'a mut Values,
}

impl Task<f32> for Fill<'_> {
    #[inline(always)]
    fn run<V: Vectors<f32>>(self, v: V) {
        let Self {
            layout,
            rows,
            position,
            memory,
            ..
        } = self;
        let Layout { width, head_dim } = layout;
        assert_eq!(rows.end, self.key.rows());
        if rows.is_empty() {
            return;
        }
        // Up to the first panel that begins with a row.
        let first_whole = position.next_multiple_of(width) - position + rows.start;
        for row in rows.start..first_whole.min(rows.end) {
            let at = position + row - rows.start;
            let panel = &mut memory[layout.key_panel(at)];
            for (d, column) in panel.chunks_exact_mut(width).enumerate() {
                column[at % width] = self.key.at(row, d);
            }
        }
        for row in (first_whole..rows.end).step_by(width) {
            PackColumns {
                b: self.key.transposed(),
                columns: row..row + width,
                rows: 0..head_dim,
                panel: &mut memory[layout.key_panel(position + row - rows.start)],
            }
            .run(v);
        }
        for panel in 0..layout.value_panels() {
            let at = position..position + rows.len();
            let packed = &mut memory[layout.value_panel(panel, &at)];
            PackColumns {
                b: self.value,
                columns: panel * width..(panel + 1) * width,
                rows: rows.clone(),
                panel: packed,
            }
            .run(v);
            *self.values = self.values.and(judge(v, packed));
        }
    }
}

/// Whether all numbers are finite; there are whole vectors of them.
#[inline(always)]
fn judge<V: Vectors<f32>>(v: V, values: &[f32]) -> Values {
    // Zero times what is finite is zero, and times anything else NaN, which stays.
    let mut sums = [v.splat(0.0); WIDTH];
    for values in values.chunks_exact(WIDTH * V::LANES) {
        for (sum, values) in sums.iter_mut().zip(values.chunks_exact(V::LANES)) {
            // SAFETY: `values` holds LANES numbers.
            let values = unsafe { v.load(values.as_ptr()) };
            *sum = v.multiply_add(values, v.splat(0.0), *sum);
        }
    }
    let mut lanes = [0.0; super::super::arch::MOST_LANES];
    for sum in sums {
        // SAFETY: no vector has more than MOST_LANES.
        unsafe { v.store(sum, lanes.as_mut_ptr()) };
        if lanes.iter().any(|lane| lane.is_nan()) {
            return Values::Spoiled;
        }
    }
    Values::Finite
}
