//! Packs keys and values into a chunk.

use std::ops::Range;

use bytemuck::{Zeroable, cast_slice, cast_slice_mut};

use super::{Layout, Operand, OperandDots, Values, operand::VectorOf};
use crate::products::{MAX_PANEL, PackColumns, View, WIDTH};
use crate::vectors::{MAX_LANES, Task, Vectors};

/// Packs rows with keys and values into a chunk.
pub(crate) struct Fill<'a, F: Operand> {
    pub(crate) layout: Layout,
    /// Keys `[positions, head_dim]`, up to the last row to pack.
    pub(crate) key: View<'a, f32>,
    /// Values, like `key`.
    pub(crate) value: View<'a, f32>,
    /// The rows to pack, which must fit into the chunk.
    pub(crate) rows: Range<usize>,
    /// The first row's position within the chunk.
    pub(crate) position: usize,
    pub(crate) memory: &'a mut [F::Word],
    /// Records whether all values are finite.
    pub(crate) values: &'a mut Values,
}

impl<F: Operand, D: OperandDots<F>> Task<D> for Fill<'_, F> {
    #[inline(always)]
    fn compute(mut self, d: D) {
        assert_eq!(self.rows.end, self.key.rows());
        if self.rows.is_empty() {
            return;
        }
        self.fill_keys(d);
        for panel in 0..self.layout.value_panels() {
            let probe = self.fill_values(d, panel);
            *self.values = self.values.and(verdict(d.vectors(), probe));
        }
    }
}

/// Key dimensions that are packed at a time: a bfloat16 cache line.
const BLOCK: usize = 32;

impl<F: Operand> Fill<'_, F> {
    #[inline(always)]
    fn fill_keys<D: OperandDots<F>>(&mut self, d: D) {
        let width = self.layout.width;
        let mut row = self.rows.start;
        while row < self.rows.end {
            let at = self.position + row - self.rows.start;
            if at.is_multiple_of(width) {
                // The whole panel at once, because nothing needs to be preserved after the last row.
                self.fill_key_panel(d, row, at);
                row += width;
            } else {
                self.fill_key(d, row, at);
                row += 1;
            }
        }
    }

    /// Packs a whole key panel, with zeros after the last row.
    #[inline(always)]
    fn fill_key_panel<D: OperandDots<F>>(&mut self, d: D, row: usize, at: usize) {
        let (width, head_dim) = (self.layout.width, self.layout.head_dim);
        let key = self.key;
        if F::PLAIN {
            return PackColumns {
                b: key.transposed(),
                columns: row..row + width,
                rows: 0..head_dim,
                panel: cast_slice_mut(&mut self.memory[self.layout.key_panel(at)]),
            }
            .compute(d.vectors());
        }
        let mut block = [F::Word::zeroed(); MAX_PANEL * BLOCK];
        let stride = BLOCK / F::GROUP;
        let n_rows = width.min(self.rows.end - row);
        for (terms, panel) in self.key_blocks(at) {
            for (i, words) in block.chunks_exact_mut(stride).take(n_rows).enumerate() {
                d.pack_right(key.row(row + i, terms.clone()), words);
            }
            // Moved as f32, which preserves all bits.
            let block = View::new(
                cast_slice(&block),
                (n_rows, panel.len() / width),
                (stride, 1),
            );
            PackColumns {
                b: block.transposed(),
                columns: 0..width,
                rows: 0..panel.len() / width,
                panel: cast_slice_mut(panel),
            }
            .compute(d.vectors());
        }
    }

    /// Packs one key into a panel column.
    #[inline(always)]
    fn fill_key<D: OperandDots<F>>(&mut self, d: D, row: usize, at: usize) {
        let (width, key) = (self.layout.width, self.key);
        let mut words = [F::Word::zeroed(); BLOCK];
        for (terms, panel) in self.key_blocks(at) {
            d.pack_right(key.row(row, terms), &mut words);
            for (panel, word) in panel.chunks_exact_mut(width).zip(words) {
                panel[at % width] = word;
            }
        }
    }

    /// Returns the key panel for one position, in blocks with [`BLOCK`] dimensions: the dimensions and their words.
    #[inline(always)]
    fn key_blocks(&mut self, at: usize) -> impl Iterator<Item = (Range<usize>, &mut [F::Word])> {
        let (width, head_dim) = (self.layout.width, self.layout.head_dim);
        let panel = &mut self.memory[self.layout.key_panel(at)];
        let words = panel.chunks_mut(BLOCK / F::GROUP * width);
        let dimensions = (0..head_dim).step_by(BLOCK);
        dimensions
            .map(move |first| first..head_dim.min(first + BLOCK))
            .zip(words)
    }

    /// Packs the rows into one value panel. Returns zero times each value, summed over rows, for [`verdict`].
    #[inline(always)]
    fn fill_values<D: OperandDots<F>>(&mut self, d: D, panel: usize) -> [VectorOf<F, D>; WIDTH] {
        let (width, head_dim) = (self.layout.width, self.layout.head_dim);
        let columns = panel * width..head_dim.min((panel + 1) * width);
        let at = self.position..self.position + self.rows.len();
        let packed = &mut self.memory[self.layout.value_panel(panel, &at)];
        let values = self.value.from(self.rows.start, columns.start);
        let mut probe = [d.vectors().splat(0.0); WIDTH];
        let mut padded = [0.0; MAX_PANEL];
        for (i, position) in at.enumerate() {
            let word = position / F::GROUP - self.position / F::GROUP;
            let packed = &mut packed[word * width..(word + 1) * width];
            let values = &values[i * self.value.row_stride()..][..columns.len()];
            let values = if columns.len() == width {
                values
            } else {
                padded[..values.len()].copy_from_slice(values);
                &padded[..width]
            };
            probe = put(d, position % F::GROUP, values, packed, probe);
        }
        probe
    }
}

/// Stores one row, as wide as a panel, as element `term` in each word. Returns `probe` plus zero times each value.
#[inline(always)]
fn put<F: Operand, D: OperandDots<F>>(
    d: D,
    term: usize,
    from: &[f32],
    to: &mut [F::Word],
    mut probe: [VectorOf<F, D>; WIDTH],
) -> [VectorOf<F, D>; WIDTH] {
    let v = d.vectors();
    let lanes = D::PANEL / WIDTH;
    assert_eq!((from.len(), to.len()), (D::PANEL, D::PANEL));
    for (j, probe) in probe.iter_mut().enumerate() {
        // SAFETY: `from` and `to` hold WIDTH vectors, by the assertion above.
        unsafe {
            let values = v.load(from.as_ptr().add(j * lanes));
            // Twice the value, because the largest finite values become infinite when rounded to bfloat16.
            *probe = v.multiply_add(v.add(values, values), v.splat(0.0), *probe);
            F::put_right(v, term, values, to.as_mut_ptr().add(j * lanes));
        }
    }
    probe
}

/// Evaluates a sum of zero times each value: NaN if any value was infinite or NaN, else zero.
#[inline(always)]
fn verdict<V: Vectors<f32>>(v: V, probe: [V::Vector; WIDTH]) -> Values {
    let mut lanes = [0.0; MAX_LANES];
    for sum in probe {
        // SAFETY: no vector has more than MAX_LANES lanes.
        unsafe { v.store(sum, lanes.as_mut_ptr()) };
        if lanes.iter().any(|lane| lane.is_nan()) {
            return Values::NonFinite;
        }
    }
    Values::Finite
}
