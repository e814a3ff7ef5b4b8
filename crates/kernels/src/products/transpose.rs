//! Transposition for packing: matrix strips, a small square at a time.

use std::ops::Range;

use super::{View, WIDTH};
use crate::vectors::{Real, Task, Vectors, columns_at_once};

/// Packs f32 or f64 rows and columns into a panel, `[rows][panel width]`. Columns after the last are zeros.
pub struct PackColumns<'a, T> {
    /// The right operand.
    pub b: View<'a, T>,
    /// `b`'s columns to pack: as many as the panel has, or half as many.
    pub columns: Range<usize>,
    /// `b`'s rows to pack.
    pub rows: Range<usize>,
    /// The panel, starting with the first such column.
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

/// Copies some rows from a matrix whose rows are not contiguous, in one column chunk.
pub struct GatherRows<'a, T> {
    /// The matrix.
    pub a: View<'a, T>,
    /// The rows to copy.
    pub rows: Range<usize>,
    /// The columns to copy, at most a chunk.
    pub columns: Range<usize>,
    /// The copies. Consecutive rows are `stride` elements apart.
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

/// A matrix strip: up to `LANES` rows, and some columns.
pub struct Strip<'a, T> {
    /// The matrix.
    pub from: View<'a, T>,
    /// The strip's rows.
    pub rows: Range<usize>,
    /// The strip's columns.
    pub columns: Range<usize>,
}

impl<T: Real> Strip<'_, T> {
    /// Writes each strip column to a row in `to`. These rows are `stride` elements apart.
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
                // SAFETY: j < columns_at_once, and `target` extends to the last such column's end.
                unsafe { v.store(column, target.as_mut_ptr().add(j * stride)) }
            };
            // SAFETY: `source` extends to the last row's end, by the assertion above.
            unsafe { v.for_columns(source.as_ptr(), from.row_stride(), store) };
        }
        for j in in_squares..n_columns {
            for i in 0..n_rows {
                to[j * stride + i] = from.at(first_row + i, first + j);
            }
        }
    }
}
