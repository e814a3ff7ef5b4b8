//! The micro-kernel for a row or two: two panels at a time.
//!
//! Each group of terms adds to every accumulator of a row, and the next group waits for the latency of these
//! additions. A single row has only as many accumulators as a panel has vectors, too few to hide that latency:
//! reading weights from the cache would wait for arithmetic. Two panels have twice as many independent chains,
//! each with the same order of addition, and so the same bits. Of integers, whose sums are the same in any order, a
//! single row has a chain for every other group besides: after a wait for memory, that is how fast the product catches up
//! (codes of 4 bits by 128 read at 89 % of a plain read on one thread, and at 75 with one chain).

use std::mem::MaybeUninit;

use super::{Dots, Format, NEXT_PANEL, WIDTH, parts};
use crate::vectors::{Real, Task, Vectors, prefetch};

/// The most rows: with more, a single panel has accumulators enough.
pub const MAX_ROWS: usize = 2;

/// The most parts of a chunk in any format.
const MAX_PARTS: usize = 16;

/// Panels in a pair.
const STREAMS: usize = 2;

/// All chunks of an even number of consecutive panels. Those of the first half and of the second are two streams, and
/// make pairs in this order.
pub struct PanelPairs<'a, F: Format> {
    /// Rows of the tile: at most [`MAX_ROWS`], and at most half of [`Dots::ROWS`].
    pub rows: usize,
    /// Terms of all chunks together.
    pub depth: usize,
    /// The left operand: packed rows. Those of the next chunk lie `a_stride` words further on.
    pub a: &'a [F::Word],
    pub a_stride: usize,
    /// The panels.
    pub b: &'a [F::Word],
    pub layout: F::Layout,
    /// Totals, `[panels, rows, Dots::PANEL]`, overwritten.
    pub totals: &'a mut [F::Number],
}

impl<F: Format, D: Dots<F>> Task<D> for PanelPairs<'_, F> {
    #[inline(always)]
    fn compute(self, dots: D) {
        match self.rows {
            1 => self.accumulate::<D, 1>(dots),
            // A level with fewer registers would spill the accumulators.
            MAX_ROWS if 2 * MAX_ROWS <= D::ROWS => self.accumulate::<D, MAX_ROWS>(dots),
            rows => panic!("pairs of panels of {rows} rows"),
        }
    }
}

impl<F: Format> PanelPairs<'_, F> {
    #[inline(always)]
    fn accumulate<D: Dots<F>, const ROWS: usize>(mut self, d: D) {
        let panel_words = F::column_words(self.layout, self.depth) * D::PANEL;
        let (results, stream) = (ROWS * D::PANEL, self.b.len() / STREAMS);
        let totals = std::mem::take(&mut self.totals);
        let (first, second) = totals.split_at_mut(totals.len() / STREAMS);
        let totals = first
            .chunks_exact_mut(results)
            .zip(second.chunks_exact_mut(results));
        let part = F::part(self.layout);
        for (panel, (first, second)) in totals.enumerate() {
            let (first_word, to) = (panel * panel_words, [first, second]);
            // The longest parts take so little time that the compiler is told how many there are at most.
            if part == F::CHUNK / 2 {
                self.pair::<D, ROWS>(d, F::CHUNK / 2, first_word, to);
            } else {
                self.pair::<D, ROWS>(d, part, first_word, to);
            }
        }
        // While the results are written, the start of either stream of the next run arrives.
        let end = self.b.as_ptr().wrapping_add(self.b.len());
        for next in [end, end.wrapping_add(stream)] {
            prefetch::bytes(next, NEXT_PANEL);
        }
    }

    /// All chunks of the pair of panels whose first begins with the word `first`.
    #[inline(always)]
    fn pair<D: Dots<F>, const ROWS: usize>(
        &self,
        d: D,
        part_terms: usize,
        first: usize,
        to: [&mut [F::Number]; STREAMS],
    ) {
        const { assert!(F::MOST_PARTS <= MAX_PARTS) };
        let v = d.vectors();
        let stream = self.b.len() / STREAMS;
        let lanes = D::PANEL / WIDTH;
        let groups_of_part = part_terms / F::GROUP;
        let mut totals = [[[v.splat(F::Number::of(0.0)); WIDTH]; ROWS]; STREAMS];
        for chunk in 0..self.depth.div_ceil(F::CHUNK).max(1) {
            let depth = (self.depth - chunk * F::CHUNK).min(F::CHUNK);
            let groups = depth.div_ceil(F::GROUP);
            let a = &self.a[chunk * self.a_stride..];
            let (head, n_words) = (
                F::head_words(self.layout, depth),
                F::chunk_words(self.layout, depth),
            );
            let whole = F::chunk_words(self.layout, F::CHUNK);
            let b = &self.b[first + chunk * whole * D::PANEL..];
            assert!(a.len() >= ROWS * D::ROW_WORDS);
            assert!(b.len() >= (STREAMS - 1) * stream + n_words * D::PANEL);
            let of_chunk = Chunk::<F> { b, stream, a, head };
            let row = |i: usize| of_chunk.row::<D>(i);
            let words = |panel: usize, row: usize, j: usize| of_chunk.words::<D>(panel, row, j);
            let n_parts = parts(depth, part_terms).max(1);
            of_chunk.prefetch::<D>(0, head);
            // Read by themselves: among the sums, which fill the registers, the kinds of heads cost a third of the speed.
            let mut heads = [[[MaybeUninit::<D::Heads>::uninit(); WIDTH]; MAX_PARTS]; STREAMS];
            for (panel, heads) in heads.iter_mut().enumerate() {
                let from = [words(panel, 0, 0), words(panel, 0, 1)];
                // SAFETY: the assertions above: `b` holds the heads of both panels, with these parts.
                unsafe { d.all_heads(self.layout, from, &mut heads[..n_parts]) };
            }
            for part in 0..n_parts {
                // Loops instead of nested `from_fn`: the inner closure would not be inlined, and would pass the
                // sums through memory.
                // SAFETY: the assertions above: `a` holds ROWS packed rows, and `b` the heads of both panels.
                let mut sums: Sums<_, ROWS> =
                    [[[unsafe { d.start(row(0), words(0, 0, 0)) }; WIDTH]; ROWS]; STREAMS];
                for (panel, sums) in sums.iter_mut().enumerate() {
                    for (i, sums) in sums.iter_mut().enumerate() {
                        for (j, sum) in sums.iter_mut().enumerate() {
                            // SAFETY: i < ROWS, panel < STREAMS and j < WIDTH, and the assertions above.
                            *sum = unsafe { d.start(row(i), words(panel, 0, j)) };
                        }
                    }
                }
                let mut group = part * groups_of_part;
                let end = groups.min(group + groups_of_part);
                // With two rows there are chains enough.
                if ROWS == 1 && d.joined(sums[0][0][0], sums[0][0][0]).is_some() {
                    let mut others = sums;
                    while group + 1 < end {
                        // SAFETY: the assertions above, and group + 1 < groups.
                        unsafe {
                            of_chunk.add_group(d, group, &mut sums);
                            of_chunk.add_group(d, group + 1, &mut others);
                        }
                        group += 2;
                    }
                    for (sums, others) in sums.iter_mut().zip(others) {
                        for (sum, other) in sums[0].iter_mut().zip(others[0]) {
                            *sum = d.joined(*sum, other).unwrap_or(*sum);
                        }
                    }
                }
                while group < end {
                    // SAFETY: the assertions above, and group < groups.
                    unsafe { of_chunk.add_group(d, group, &mut sums) };
                    group += 1;
                }
                for (panel, (sums, totals)) in sums.into_iter().zip(&mut totals).enumerate() {
                    for j in 0..WIDTH {
                        // SAFETY: all heads of the chunk's parts were written above.
                        let heads = unsafe { heads[panel][part][j].assume_init() };
                        for (i, (sums, totals)) in sums.iter().zip(&mut *totals).enumerate() {
                            // SAFETY: as above.
                            let sum = unsafe { d.numbers(sums[j], row(i), part, heads) };
                            totals[j] = match chunk + part {
                                0 => sum,
                                _ => v.add(totals[j], sum),
                            };
                        }
                    }
                }
            }
        }
        for (totals, to) in totals.iter().zip(to) {
            let to = to[..ROWS * D::PANEL].chunks_exact_mut(lanes);
            for (&total, to) in totals.as_flattened().iter().zip(to) {
                // SAFETY: `to` holds as many numbers as a vector.
                unsafe { v.store(total, to.as_mut_ptr()) };
            }
        }
    }
}

/// Sums of a part: of each panel, row and vector of columns.
type Sums<S, const ROWS: usize> = [[[S; WIDTH]; ROWS]; STREAMS];

/// The words of a pair of panels, from a chunk on.
struct Chunk<'a, F: Format> {
    /// The first panel's; the second's lie `stream` words further on.
    b: &'a [F::Word],
    stream: usize,
    /// Packed rows.
    a: &'a [F::Word],
    /// Rows of heads before the groups.
    head: usize,
}

impl<F: Format> Chunk<'_, F> {
    #[inline(always)]
    fn words<D: Dots<F>>(&self, panel: usize, row: usize, j: usize) -> *const F::Word {
        let at = panel * self.stream + row * D::PANEL + j * (D::PANEL / WIDTH);
        self.b.as_ptr().wrapping_add(at)
    }

    #[inline(always)]
    fn row<D: Dots<F>>(&self, i: usize) -> *const F::Word {
        self.a.as_ptr().wrapping_add(i * D::ROW_WORDS)
    }

    /// Prefetches what lies ahead of some rows of words.
    #[inline(always)]
    fn prefetch<D: Dots<F>>(&self, first: usize, n: usize) {
        if F::AHEAD > 0 {
            let bytes = n * D::PANEL * size_of::<F::Word>();
            for panel in 0..STREAMS {
                let ahead = self.words::<D>(panel, first, 0).cast::<u8>();
                prefetch::bytes(ahead.wrapping_add(F::AHEAD), bytes);
            }
        }
    }

    /// Adds the products of a group.
    ///
    /// # Safety
    /// `a` holds `ROWS` packed rows, `b` the chunk of both panels, and the chunk has this group.
    #[inline(always)]
    unsafe fn add_group<D: Dots<F>, const ROWS: usize>(
        &self,
        d: D,
        group: usize,
        sums: &mut Sums<D::Sum, ROWS>,
    ) {
        let first = self.head + group * F::GROUP_WORDS;
        self.prefetch::<D>(first, F::GROUP_WORDS);
        // SAFETY: the caller's promise.
        let mut a = [unsafe { d.left(self.row::<D>(0), group) }; ROWS];
        for (i, a) in a.iter_mut().enumerate() {
            // SAFETY: the caller's promise, and i < ROWS.
            *a = unsafe { d.left(self.row::<D>(i), group) };
        }
        for (panel, sums) in sums.iter_mut().enumerate() {
            for j in 0..WIDTH {
                // SAFETY: the caller's promise: the load ends within the chunk's words of either panel.
                let b = unsafe { d.right(self.words::<D>(panel, first, j)) };
                for (sums, &a) in sums.iter_mut().zip(&a) {
                    sums[j] = d.dot(a, b, sums[j]);
                }
            }
        }
    }
}
