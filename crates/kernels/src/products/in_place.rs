//! Products with few rows and an unpacked weight.
//!
//! For one or two rows, packing a panel costs more than multiplying it. This micro-kernel transposes small weight
//! squares in registers and multiplies them at once. The summation order equals the packed tiles', so that the bits
//! are the same.

use std::ops::Range;

use super::{CHUNK, Total, View};
use crate::vectors::prefetch::{self, LINE};
use crate::vectors::{MAX_LANES, Real, Task, Vectors, columns_at_once};

/// Vectors of columns per step. Their multiply-add chains are independent, so that neither waits for the other's
/// latency.
const GROUPS: usize = 2;

/// The maximum row count for which reading in place is faster than packing.
pub const MAX_ROWS: usize = 4;

/// A chunk in a tile with at most [`MAX_ROWS`] rows, like [`DotTiles`](super::dot_tile::DotTiles) with an unpacked
/// right operand.
pub struct InPlaceTile<'a, T> {
    /// Tile rows, at most [`MAX_ROWS`].
    pub rows: usize,
    /// The left operand: rows, [`CHUNK`] values apart.
    pub a: &'a [T],
    /// The weight `[columns, depth]`, which is the right operand transposed. Its rows are contiguous.
    pub weight: View<'a, T>,
    /// This chunk's range along `k`, at most [`CHUNK`].
    pub terms: Range<usize>,
    /// The weight rows that are the tile's columns.
    pub columns: Range<usize>,
    /// Running totals, `[rows, columns]`.
    pub totals: &'a mut [T],
    /// Tells whether `totals` already holds earlier chunks' sums.
    pub total: Total,
}

impl<T: Real, V: Vectors<T>> Task<V> for InPlaceTile<'_, T> {
    #[inline(always)]
    fn compute(self, vectors: V) {
        let transposer = V::Transposer::from(vectors);
        match self.rows {
            1 => self.accumulate::<V::Transposer, 1>(transposer),
            2 => self.accumulate::<V::Transposer, 2>(transposer),
            3 => self.accumulate::<V::Transposer, 3>(transposer),
            MAX_ROWS => self.accumulate::<V::Transposer, MAX_ROWS>(transposer),
            rows => panic!("a tile of {rows} rows"),
        }
    }
}

impl<T: Real> InPlaceTile<'_, T> {
    #[inline(always)]
    fn accumulate<V: Vectors<T>, const ROWS: usize>(self, v: V) {
        let (width, depth) = (self.columns.len(), self.terms.len());
        let stride = self.weight.row_stride();
        assert!(depth <= CHUNK && self.a.len() >= (ROWS - 1) * CHUNK + depth);
        assert!(self.totals.len() >= ROWS * width && width.is_multiple_of(GROUPS * V::LANES));
        if depth == 0 {
            // An empty sum. A weight with depth 0 has no address to read from.
            return self.totals[..ROWS * width].fill(T::ZERO);
        }
        let weight = self.weight.from(self.columns.start, self.terms.start);
        assert!(weight.len() >= (width - 1) * stride + depth);
        let line = LINE / size_of::<T>();
        let in_lines = depth - depth % line;
        for first in (0..width).step_by(GROUPS * V::LANES) {
            let mut sums = [[v.splat(T::ZERO); ROWS]; GROUPS];
            for k in (0..in_lines).step_by(line) {
                for (group, sums) in sums.iter_mut().enumerate() {
                    let at = (first + group * V::LANES) * stride + k;
                    for i in 0..V::LANES {
                        // The weight's rows are too many streams, too far apart, for the hardware prefetcher.
                        prefetch::near(weight.as_ptr().wrapping_add(at + i * stride + CHUNK));
                    }
                    for square in (0..line).step_by(columns_at_once::<T>()) {
                        let each = |j: usize, column: V::Vector| {
                            self.add_column(v, k + square + j, column, sums);
                        };
                        // SAFETY: rows are below `width` and `k` below `depth`, which all lie in `weight` by the
                        // assertion above.
                        unsafe { v.for_columns(weight.as_ptr().add(at + square), stride, each) };
                    }
                }
            }
            for k in in_lines..depth {
                for (group, sums) in sums.iter_mut().enumerate() {
                    let row = first + group * V::LANES;
                    let mut column = [T::ZERO; MAX_LANES];
                    for (i, element) in column[..V::LANES].iter_mut().enumerate() {
                        *element = weight[(row + i) * stride + k];
                    }
                    // SAFETY: `column` holds MAX_LANES values, as many as the longest vector.
                    let column = unsafe { v.load(column.as_ptr()) };
                    self.add_column(v, k, column, sums);
                }
            }
            for (group, sums) in sums.iter().enumerate() {
                for (i, sum) in sums.iter().enumerate() {
                    let at = i * width + first + group * V::LANES;
                    let totals = &mut self.totals[at..at + V::LANES];
                    let total = match self.total {
                        Total::New => *sum,
                        // SAFETY: `totals` holds LANES values.
                        Total::Running => v.add(unsafe { v.load(totals.as_ptr()) }, *sum),
                    };
                    // SAFETY: as above.
                    unsafe { v.store(total, totals.as_mut_ptr()) };
                }
            }
        }
    }

    /// Adds `a[i][k] · column` to each row `i`'s sums.
    #[inline(always)]
    fn add_column<V: Vectors<T>, const ROWS: usize>(
        &self,
        v: V,
        k: usize,
        column: V::Vector,
        sums: &mut [V::Vector; ROWS],
    ) {
        debug_assert!((ROWS - 1) * CHUNK + k < self.a.len());
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: i < ROWS and k < depth; `accumulate` asserted that `a` includes all rows.
            let a = unsafe { *self.a.get_unchecked(i * CHUNK + k) };
            *sum = v.multiply_add(v.splat(a), column, *sum);
        }
    }
}
