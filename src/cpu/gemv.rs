//! Products of few rows with a weight that is read where it lies.
//!
//! To pack a panel costs more than to multiply it by a row or two. Here a square of the weight is
//! turned in registers and multiplied at once; the order of addition is that of the tiles.

use std::ops::Range;

use super::{
    Real,
    arch::{MOST_LANES, Task, Vectors, turned},
    tile::{CHUNK, Total},
    view::View,
};

/// Vectors of sums at a time: the products of one do not wait for those of the other.
const GROUPS: usize = 2;

/// The most rows for which this is faster than to pack.
pub const MOST_ROWS: usize = 4;

/// One chunk of a tile of at most [`MOST_ROWS`] rows; as [`DotTile`](super::dot_tile::DotTile), with the right
/// operand in place.
pub struct InPlaceTile<'a, T> {
    /// At most [`MOST_ROWS`].
    pub rows: usize,
    /// Rows of the left operand, [`CHUNK`] apart.
    pub a: &'a [T],
    /// The weight `[columns, terms]`: the right operand transposed. Its rows are whole.
    pub weight: View<'a, T>,
    /// The chunk, at most [`CHUNK`].
    pub terms: Range<usize>,
    /// As many of the weight's rows as the tile has columns.
    pub columns: Range<usize>,
    /// `[rows, columns]`.
    pub totals: &'a mut [T],
    /// Whether `totals` holds anything yet.
    pub total: Total,
}

impl<T: Real> Task<T> for InPlaceTile<'_, T> {
    #[inline(always)]
    fn run<V: Vectors<T>>(self, vectors: V) {
        let turner = vectors.turner();
        match self.rows {
            1 => self.accumulate::<V::Turner, 1>(turner),
            2 => self.accumulate::<V::Turner, 2>(turner),
            3 => self.accumulate::<V::Turner, 3>(turner),
            MOST_ROWS => self.accumulate::<V::Turner, MOST_ROWS>(turner),
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
            // A sum of nothing; a weight without terms has no place to read from.
            return self.totals[..ROWS * width].fill(T::ZERO);
        }
        let weight = self.weight.from(self.columns.start, self.terms.start);
        assert!(weight.len() >= (width - 1) * stride + depth);
        let line = 64 / size_of::<T>();
        let in_lines = depth - depth % line;
        for first in (0..width).step_by(GROUPS * V::LANES) {
            let mut sums = [[v.splat(T::ZERO); ROWS]; GROUPS];
            for k in (0..in_lines).step_by(line) {
                for (group, sums) in sums.iter_mut().enumerate() {
                    let at = (first + group * V::LANES) * stride + k;
                    for i in 0..V::LANES {
                        // Few rows, and many of them far apart, are more than the CPU foresees.
                        v.prefetch(weight.as_ptr().wrapping_add(at + i * stride + CHUNK));
                    }
                    for turn in (0..line).step_by(turned::<T>()) {
                        let each = |j: usize, column: V::Vector| {
                            self.add_column(v, k + turn + j, column, sums);
                        };
                        // SAFETY: these are rows below `width` and terms below `depth`, all in `weight`.
                        unsafe { v.for_columns(weight.as_ptr().add(at + turn), stride, each) };
                    }
                }
            }
            for k in in_lines..depth {
                for (group, sums) in sums.iter_mut().enumerate() {
                    let row = first + group * V::LANES;
                    let mut column = [T::ZERO; MOST_LANES];
                    for (i, element) in column[..V::LANES].iter_mut().enumerate() {
                        *element = weight[(row + i) * stride + k];
                    }
                    // SAFETY: no vector has more than MOST_LANES.
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
                        // SAFETY: `totals` holds LANES numbers.
                        Total::Running => v.add(unsafe { v.load(totals.as_ptr()) }, *sum),
                    };
                    // SAFETY: `totals` holds LANES numbers.
                    unsafe { v.store(total, totals.as_mut_ptr()) };
                }
            }
        }
    }

    /// Adds term `k` of the chunk to the sums of each row.
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
            // SAFETY: i < ROWS and k < depth; `accumulate` saw `a` reach to the last of them.
            let a = unsafe { *self.a.get_unchecked(i * CHUNK + k) };
            *sum = v.multiply_add(v.splat(a), column, *sum);
        }
    }
}
