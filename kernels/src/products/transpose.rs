//! The transpositions that packing consists of: of strips of a matrix, a small square at a time.

use std::ops::Range;

use super::{View, WIDTH};
use crate::vectors::{Real, Task, Vectors, columns_at_once};

/// Packs rows and columns of a plain format into a panel, `[rows][panel width]`, with zeros for columns beyond
/// the last.
pub struct PackColumns<'a, T> {
    /// The right operand.
    pub b: View<'a, T>,
    /// Its columns to pack: as many as the panel has, or half of them.
    pub columns: Range<usize>,
    /// Its rows to pack.
    pub rows: Range<usize>,
    /// The panel, or the rest of it from the first of these columns on.
    pub panel: &'a mut [T],
}

impl<T: Real, V: Vectors<T>> Task<V> for PackColumns<'_, T> {
    #[inline(always)]
    fn compute(self, v: V) {
        let width = WIDTH * V::LANES;
        let Self { b, rows, panel, .. } = self;
        let n_columns = self.columns.len();
        let columns = self.columns.start..b.columns().min(self.columns.end);
        if rows.is_empty() {
            return;
        }
        if b.has_whole_rows() {
            for (row, packed) in rows.zip(panel.chunks_mut(width)) {
                copy_padded(b.row(row, columns.clone()), &mut packed[..n_columns]);
            }
            return;
        }
        if columns.len() < n_columns {
            for packed in panel.chunks_mut(width).take(rows.len()) {
                packed[..n_columns].fill(T::ZERO);
            }
        }
        let lanes = <V::Transposer as Vectors<T>>::LANES;
        for first in columns.clone().step_by(lanes) {
            let strip = Strip {
                from: b.transposed(),
                rows: first..columns.end.min(first + lanes),
                columns: rows.clone(),
            };
            let to = &mut panel[first - columns.start..];
            strip.transpose(V::Transposer::from(v), to, width);
        }
    }
}

/// Copies some rows of a matrix whose rows are not contiguous, in one chunk of columns.
pub struct GatherRows<'a, T> {
    /// The matrix.
    pub a: View<'a, T>,
    /// Its rows to copy.
    pub rows: Range<usize>,
    /// Its columns to copy, at most a chunk.
    pub columns: Range<usize>,
    /// The copies; consecutive rows are `stride` numbers apart.
    pub gathered: &'a mut [T],
    pub stride: usize,
}

impl<T: Real> GatherRows<'_, T> {
    #[inline(always)]
    pub fn gather<V: Vectors<T>>(self, v: V) {
        let lanes = <V::Transposer as Vectors<T>>::LANES;
        for first in self.columns.clone().step_by(lanes) {
            let strip = Strip {
                from: self.a.transposed(),
                rows: first..self.columns.end.min(first + lanes),
                columns: self.rows.clone(),
            };
            let to = &mut self.gathered[first - self.columns.start..];
            strip.transpose(V::Transposer::from(v), to, self.stride);
        }
    }
}

/// Copies `from` into `to`, and fills the rest with zeros.
#[inline(always)]
fn copy_padded<T: Real>(from: &[T], to: &mut [T]) {
    let (filled, rest) = to.split_at_mut(from.len());
    filled.copy_from_slice(from);
    rest.fill(T::ZERO);
}

/// A strip of a matrix: up to `LANES` rows, and some columns.
pub struct Strip<'a, T> {
    /// The matrix.
    pub from: View<'a, T>,
    /// Rows of the strip.
    pub rows: Range<usize>,
    /// Columns of the strip.
    pub columns: Range<usize>,
}

impl<T: Real> Strip<'_, T> {
    /// Writes each column of the strip as a row of `to`, these `stride` numbers apart.
    #[inline(always)]
    pub fn transpose<V: Vectors<T>>(self, v: V, to: &mut [T], stride: usize) {
        let (from, first_row, first) = (self.from, self.rows.start, self.columns.start);
        let (n_rows, n_columns) = (self.rows.len(), self.columns.len());
        let in_squares = if n_rows == V::LANES && from.has_whole_rows() {
            n_columns - n_columns % columns_at_once::<T>()
        } else {
            0
        };
        for square in (0..in_squares).step_by(columns_at_once::<T>()) {
            let source = from.from(first_row, first + square);
            assert!(source.len() >= (V::LANES - 1) * from.row_stride() + columns_at_once::<T>());
            let target =
                &mut to[square * stride..][..(columns_at_once::<T>() - 1) * stride + V::LANES];
            let store = |j: usize, column: V::Vector| {
                // SAFETY: j < columns_at_once, and `target` reaches from its start to the end of the last of these
                // columns.
                unsafe { v.store(column, target.as_mut_ptr().add(j * stride)) }
            };
            // SAFETY: `source` reaches to the end of the last row, by the assertion above.
            unsafe { v.for_columns(source.as_ptr(), from.row_stride(), store) };
        }
        for j in in_squares..n_columns {
            for i in 0..n_rows {
                to[j * stride + i] = from.at(first_row + i, first + j);
            }
        }
    }
}
