//! Two ways to pack right operand columns into panels.

use std::ops::Range;

use bytemuck::{Zeroable, cast_slice, cast_slice_mut};

use super::{Dots, Format, MAX_PANEL, View, WIDTH, transpose::Strip};
use crate::vectors::{Element, Task, Vectors, prefetch};

/// How many rows [`PackByRows`] prefetches ahead.
const ROWS_AHEAD: usize = 8;

/// Packs columns from contiguous rows, without transposition, for formats with [`Format::BY_ROWS`].
pub struct PackByRows<'a, F: Format> {
    pub b: View<'a, F::Element>,
    pub columns: Range<usize>,
    /// The panels to write, as many as the columns need.
    pub out: &'a mut [F::Word],
}

impl<F: Format, V: Vectors<F::Element>> Task<V> for PackByRows<'_, F> {
    #[inline(always)]
    fn compute(self, _: V) {
        const { assert!(!F::BY_ROWS || F::GROUP <= 2) };
        let Self { b, columns, out } = self;
        let width = WIDTH * V::LANES;
        let words = F::column_words(F::Layout::default(), b.rows()) * width;
        let zeros = [F::Element::ZERO; MAX_PANEL];
        for (word, row) in (0..b.rows()).step_by(F::GROUP).enumerate() {
            let first = b.row(row, columns.clone());
            // For words with one value, the value itself. After the last row, zeros.
            let second = row + F::GROUP - 1;
            let second = (second < b.rows()).then(|| b.row(second, columns.clone()));
            // The next rows are too far apart for the hardware prefetcher.
            for row in row..b.rows().min(row + F::GROUP) {
                let ahead = b.from(row, columns.start).as_ptr();
                let ahead = ahead.wrapping_add(ROWS_AHEAD * b.row_stride());
                prefetch::bytes(ahead, size_of_val(first));
            }
            for (panel, first) in first.chunks(width).enumerate() {
                let to = &mut out[panel * words + word * width..][..width];
                let second = match second {
                    Some(second) => &second[panel * width..][..first.len()],
                    None => &zeros[..first.len()],
                };
                if first.len() == width {
                    // A trip count known at compile time lets the loop vectorize without a remainder.
                    F::pack_word_row([&first[..width], &second[..width]], &mut to[..width]);
                    continue;
                }
                let (filled, rest) = to.split_at_mut(first.len());
                F::pack_word_row([first, second], filled);
                rest.fill(F::Word::zeroed());
            }
        }
    }
}

/// Returns the distance between gathered columns: one cache line more than a multiple of cache lines. Columns a
/// multiple of a page apart would compete for the same cache sets.
pub const fn gathered_stride(depth: usize) -> usize {
    depth.next_multiple_of(GATHERED) + GATHERED
}

/// Values gathered from each column at a time: an f32 cache line.
const GATHERED: usize = 16;

/// Returns how many columns are transposed together.
pub const fn transposed_columns<F: Format, D: Dots<F>>() -> usize {
    <<D::Vectors as Vectors<F::Element>>::Transposer as Vectors<F::Element>>::LANES
}

/// Packs some columns into a panel: rounds their values to words, and transposes the words.
pub struct PackPanel<'a, F: Format> {
    pub layout: F::Layout,
    pub b: View<'a, F::Element>,
    pub columns: Range<usize>,
    /// Contiguous copies of the columns, if `b`'s columns are not contiguous. Otherwise empty.
    pub gathered: &'a mut [F::Element],
    /// Working memory for up to `lanes` packed columns.
    pub words: &'a mut [F::Word],
    pub panel: &'a mut [F::Word],
}

impl<F: Format, V: Vectors<F::Element>> Task<V> for PackPanel<'_, F> {
    #[inline(always)]
    fn compute(mut self, v: V) {
        // The assertion removes the code below for other formats.
        assert!(
            F::FROM_FLOATS,
            "the format is packed from quantized values only"
        );
        let (depth, width) = (self.b.rows(), WIDTH * V::LANES);
        let n_words = F::column_words(self.layout, depth);
        if n_words == 0 {
            return;
        }
        if !self.gathered.is_empty() {
            self.gather(V::Transposer::from(v));
        }
        let transposed = self.b.transposed();
        let panel = cast_slice_mut::<F::Word, F::Element>(self.panel);
        let lanes = V::Transposer::LANES;
        for first in (0..self.columns.len()).step_by(lanes) {
            let strip = first..self.columns.len().min(first + lanes);
            for (j, words) in strip.clone().zip(self.words.chunks_exact_mut(n_words)) {
                let terms = match self.gathered.is_empty() {
                    true => transposed.row(self.columns.start + j, 0..depth),
                    false => &self.gathered[j * gathered_stride(depth)..][..depth],
                };
                F::pack_column(self.layout, terms, words);
            }
            let words = cast_slice::<F::Word, F::Element>(self.words);
            let strip = Strip {
                from: View::new(words, (strip.len(), n_words), (n_words, 1)),
                rows: 0..strip.len(),
                columns: 0..n_words,
            };
            strip.transpose(V::Transposer::from(v), &mut panel[first..], width);
        }
        for row in self.panel.chunks_mut(width).take(n_words) {
            for first in (0..self.columns.len()).step_by(V::LANES) {
                F::arrange(&mut row[first..first + V::LANES]);
            }
        }
    }
}

impl<F: Format> PackPanel<'_, F> {
    /// Copies the columns to `gathered`, one after the other.
    #[inline(always)]
    fn gather<V: Vectors<F::Element>>(&mut self, v: V) {
        let (depth, width) = (self.b.rows(), self.columns.len());
        let stride = gathered_stride(depth);
        let mut block = [F::Element::ZERO; GATHERED * MAX_PANEL];
        for first in (0..depth).step_by(GATHERED) {
            let rows = first..depth.min(first + GATHERED);
            for (row, to) in rows.clone().zip(block.chunks_exact_mut(width)) {
                if self.b.has_whole_rows() {
                    let row = self.b.row(row, self.columns.clone());
                    to.copy_from_slice(row);
                } else {
                    for (to, column) in to.iter_mut().zip(self.columns.clone()) {
                        *to = self.b.at(row, column);
                    }
                }
            }
            for below in (0..rows.len()).step_by(V::LANES) {
                let strip = Strip {
                    from: View::new(&block, (rows.len(), width), (width, 1)),
                    rows: below..rows.len().min(below + V::LANES),
                    columns: 0..width,
                };
                strip.transpose(v, &mut self.gathered[first + below..], stride);
            }
        }
    }
}
