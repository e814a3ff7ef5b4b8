//! Keys and values of [`CHUNK`] positions of one head, as the micro-kernel reads them.
//!
//! Keys lie in panels as wide as a tile, `[panels of positions][head_dim][width]`: the right operand of
//! the product with the queries. Values lie in panels too, `[panels of dimensions][CHUNK][width]`, the
//! last one filled with zeros: that of the product with the exponentials.

use std::ops::Range;

use super::super::{
    arch::{MOST_LANES, Task, Vectors},
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
    fn run<V: Vectors<f32>>(mut self, v: V) {
        assert_eq!(self.rows.end, self.key.rows());
        if self.rows.is_empty() {
            return;
        }
        self.fill_keys(v);
        for panel in 0..self.layout.value_panels() {
            let judge = self.fill_values(v, panel);
            *self.values = self.values.and(verdict(v, judge));
        }
    }
}

impl Fill<'_> {
    #[inline(always)]
    fn fill_keys<V: Vectors<f32>>(&mut self, v: V) {
        let Layout { width, head_dim } = self.layout;
        let mut row = self.rows.start;
        while row < self.rows.end {
            let at = self.position + row - self.rows.start;
            let panel = &mut self.memory[self.layout.key_panel(at)];
            if at.is_multiple_of(width) {
                // Of the whole panel: nothing lies behind the last row.
                PackColumns {
                    b: self.key.transposed(),
                    columns: row..row + width,
                    rows: 0..head_dim,
                    panel,
                }
                .run(v);
                row += width;
            } else {
                for (d, panel) in panel.chunks_exact_mut(width).enumerate() {
                    panel[at % width] = self.key.at(row, d);
                }
                row += 1;
            }
        }
    }

    /// Returns the sum of zero times each value.
    #[inline(always)]
    fn fill_values<V: Vectors<f32>>(&mut self, v: V, panel: usize) -> [V::Vector; WIDTH] {
        let Layout { width, head_dim } = self.layout;
        let columns = panel * width..head_dim.min((panel + 1) * width);
        let at = self.position..self.position + self.rows.len();
        let packed = &mut self.memory[self.layout.value_panel(panel, &at)];
        let values = self.value.from(self.rows.start, columns.start);
        let rows = packed.chunks_exact_mut(width).enumerate();
        let rows = rows.map(|(i, packed)| {
            let start = i * self.value.row_stride();
            (&values[start..start + columns.len()], packed)
        });
        let mut judge = [v.splat(0.0); WIDTH];
        if columns.len() == width {
            for (values, packed) in rows {
                judge = copy(v, values, packed, judge);
            }
        } else {
            let mut padded = [0.0; WIDTH * MOST_LANES];
            for (values, packed) in rows {
                padded[..values.len()].copy_from_slice(values);
                judge = copy(v, &padded[..width], packed, judge);
            }
        }
        judge
    }
}

/// Copies a row as wide as a panel; returns `judge` plus zero times each.
#[inline(always)]
fn copy<V: Vectors<f32>>(
    v: V,
    from: &[f32],
    to: &mut [f32],
    mut judge: [V::Vector; WIDTH],
) -> [V::Vector; WIDTH] {
    let width = WIDTH * V::LANES;
    assert_eq!((from.len(), to.len()), (width, width));
    for (j, judge) in judge.iter_mut().enumerate() {
        // SAFETY: `from` and `to` hold WIDTH * LANES numbers.
        unsafe {
            let values = v.load(from.as_ptr().add(j * V::LANES));
            *judge = v.multiply_add(values, v.splat(0.0), *judge);
            v.store(values, to.as_mut_ptr().add(j * V::LANES));
        }
    }
    judge
}

/// Zero times what is finite is zero, and times anything else NaN, which stays in the sum.
#[inline(always)]
fn verdict<V: Vectors<f32>>(v: V, judge: [V::Vector; WIDTH]) -> Values {
    let mut lanes = [0.0; MOST_LANES];
    for sum in judge {
        // SAFETY: no vector has more than MOST_LANES.
        unsafe { v.store(sum, lanes.as_mut_ptr()) };
        if lanes.iter().any(|lane| lane.is_nan()) {
            return Values::Spoiled;
        }
    }
    Values::Finite
}
