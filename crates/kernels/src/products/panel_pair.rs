//! The micro-kernel for up to six rows: two panels at a time.
//!
//! Each group adds to all accumulators in a row, and the next group waits for these additions' latency. A single row
//! has only as many accumulators as a panel has vectors, too few to hide that latency: reading weights from the
//! cache would wait for arithmetic. Two panels have twice as many independent chains. The summation order in each
//! chain, and so its bits, stay the same. Integer sums are the same in any order, so that a single row also uses
//! separate chains for even and odd groups. This matters after a wait for memory: int4 in 128-value groups reads at
//! 89 % of a plain read's speed on one thread, and at 75 % with one chain.

use std::mem::MaybeUninit;

use super::{Dots, Format, NEXT_PANEL, WIDTH, parts};
use crate::vectors::{Real, Task, Vectors, prefetch};

/// The maximum part count per chunk in any format.
const MAX_PARTS: usize = 16;

/// Panels in a pair.
const STREAMS: usize = 2;

/// All chunks in an even number of consecutive panels. The first half and the second half are two streams. Panel `i`
/// in one is paired with panel `i` in the other.
pub struct PanelPairs<'a, F: Format> {
    /// Tile rows: at most [`Format::PAIRED_ROWS`], and at most half [`Dots::ROWS`].
    pub rows: usize,
    /// All chunks' depth together.
    pub depth: usize,
    /// The left operand: packed rows, with chunks `a_stride` words apart.
    pub a: &'a [F::Word],
    pub a_stride: usize,
    /// The panels.
    pub b: &'a [F::Word],
    pub layout: F::Layout,
    /// Totals, `[panels, rows, Dots::PANEL]`, overwritten.
    pub totals: &'a mut [F::Element],
}

impl<F: Format, D: Dots<F>> Task<D> for PanelPairs<'_, F> {
    #[inline(always)]
    fn compute(self, dots: D) {
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match self.rows {
                    // Instruction sets with fewer registers would spill the accumulators.
                    $($rows if const { $rows <= F::PAIRED_ROWS && STREAMS * $rows <= D::ROWS } => self.accumulate::<D, $rows>(dots),)*
                    rows => panic!("a pair of panels with {rows} rows"),
                }
            };
        }
        by_rows!(1 2 3 4 5 6)
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
            // For the longest parts, the loop over parts is so short that a constant trip count pays.
            if part == F::CHUNK / 2 {
                self.pair::<D, ROWS>(d, F::CHUNK / 2, first_word, to);
            } else {
                self.pair::<D, ROWS>(d, part, first_word, to);
            }
        }
        // The next run's start arrives, in both streams, while the results are written.
        let end = self.b.as_ptr().wrapping_add(self.b.len());
        for next in [end, end.wrapping_add(stream)] {
            prefetch::bytes(next, NEXT_PANEL);
        }
    }

    /// Computes all chunks in a panel pair. The first panel starts at the word `first`.
    #[inline(always)]
    fn pair<D: Dots<F>, const ROWS: usize>(
        &self,
        d: D,
        part_terms: usize,
        first: usize,
        to: [&mut [F::Element]; STREAMS],
    ) {
        const { assert!(F::MOST_PARTS <= MAX_PARTS) };
        let v = d.vectors();
        let stream = self.b.len() / STREAMS;
        let lanes = D::PANEL / WIDTH;
        let groups_of_part = part_terms / F::GROUP;
        let mut totals = [[[v.splat(F::Element::of(0.0)); WIDTH]; ROWS]; STREAMS];
        for chunk in 0..self.depth.div_ceil(F::CHUNK).max(1) {
            let depth = (self.depth - chunk * F::CHUNK).min(F::CHUNK);
            let groups = depth.div_ceil(F::GROUP);
            let a = &self.a[chunk * self.a_stride..];
            let (scale_words, n_words) = (
                F::scale_words(self.layout, depth),
                F::chunk_words(self.layout, depth),
            );
            let whole = F::chunk_words(self.layout, F::CHUNK);
            let b = &self.b[first + chunk * whole * D::PANEL..];
            assert!(a.len() >= ROWS * D::ROW_WORDS);
            assert!(b.len() >= (STREAMS - 1) * stream + n_words * D::PANEL);
            let pair_chunk = PairChunk::<F> {
                b,
                stream,
                a,
                scale_words,
            };
            let row = |i: usize| pair_chunk.row::<D>(i);
            let words = |panel: usize, row: usize, j: usize| pair_chunk.words::<D>(panel, row, j);
            let n_parts = parts(depth, part_terms).max(1);
            pair_chunk.prefetch::<D>(0, scale_words);
            // Loaded first: interleaved with the sums, which fill the registers, the branches on the scale layout
            // cost a third of the speed.
            let mut scales = [[[MaybeUninit::<D::Scales>::uninit(); WIDTH]; MAX_PARTS]; STREAMS];
            for (panel, scales) in scales.iter_mut().enumerate() {
                let from = [words(panel, 0, 0), words(panel, 0, 1)];
                // SAFETY: by the assertions above, `b` holds both panels' scales, with these parts.
                unsafe { d.all_scales(self.layout, from, &mut scales[..n_parts]) };
            }
            for part in 0..n_parts {
                // Loops rather than nested `from_fn`: the inner closure would not be inlined, and would pass the
                // sums through memory.
                // SAFETY: by the assertions above, `a` holds ROWS packed rows, and `b` both panels' scales.
                let mut sums: PairSums<_, ROWS> =
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
                // More rows have enough chains.
                if ROWS == 1 && d.joined(sums[0][0][0], sums[0][0][0]).is_some() {
                    let mut others = sums;
                    while group + 1 < end {
                        // SAFETY: the assertions above, and group + 1 < groups.
                        unsafe {
                            pair_chunk.add_group(d, group, &mut sums);
                            pair_chunk.add_group(d, group + 1, &mut others);
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
                    unsafe { pair_chunk.add_group(d, group, &mut sums) };
                    group += 1;
                }
                for (panel, (sums, totals)) in sums.into_iter().zip(&mut totals).enumerate() {
                    for j in 0..WIDTH {
                        // SAFETY: all scales of the chunk's parts were written above.
                        let scales = unsafe { scales[panel][part][j].assume_init() };
                        for (i, (sums, totals)) in sums.iter().zip(&mut *totals).enumerate() {
                            // SAFETY: as above.
                            let sum = unsafe { d.to_floats(sums[j], row(i), part, scales) };
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
                // SAFETY: `to` holds a whole vector.
                unsafe { v.store(total, to.as_mut_ptr()) };
            }
        }
    }
}

/// A part's sums, for each panel, row and column vector.
type PairSums<S, const ROWS: usize> = [[[S; WIDTH]; ROWS]; STREAMS];

/// A panel pair's words, starting with a chunk.
struct PairChunk<'a, F: Format> {
    /// The first panel's words. The second panel's are `stream` words further on.
    b: &'a [F::Word],
    stream: usize,
    /// Packed rows.
    a: &'a [F::Word],
    /// Rows of scale words before the groups.
    scale_words: usize,
}

impl<F: Format> PairChunk<'_, F> {
    #[inline(always)]
    fn words<D: Dots<F>>(&self, panel: usize, row: usize, j: usize) -> *const F::Word {
        let at = panel * self.stream + row * D::PANEL + j * (D::PANEL / WIDTH);
        self.b.as_ptr().wrapping_add(at)
    }

    #[inline(always)]
    fn row<D: Dots<F>>(&self, i: usize) -> *const F::Word {
        self.a.as_ptr().wrapping_add(i * D::ROW_WORDS)
    }

    /// Prefetches the words that follow `n` word rows at the prefetch distance.
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

    /// Adds a group's products.
    ///
    /// # Safety
    /// `a` holds `ROWS` packed rows, `b` both panels' chunk, and the chunk has this group.
    #[inline(always)]
    unsafe fn add_group<D: Dots<F>, const ROWS: usize>(
        &self,
        d: D,
        group: usize,
        sums: &mut PairSums<D::Sum, ROWS>,
    ) {
        let first = self.scale_words + group / F::GROUPS * F::GROUP_WORDS;
        let place = group % F::GROUPS;
        // Of words that groups share, each prefetches a part.
        let part = F::GROUP_WORDS.div_ceil(F::GROUPS);
        self.prefetch::<D>(first + place * part, part);
        // SAFETY: the caller's promise.
        let mut a = [unsafe { d.left(self.row::<D>(0), group) }; ROWS];
        for (i, a) in a.iter_mut().enumerate() {
            // SAFETY: the caller's promise, and i < ROWS.
            *a = unsafe { d.left(self.row::<D>(i), group) };
        }
        for (panel, sums) in sums.iter_mut().enumerate() {
            for j in 0..WIDTH {
                // SAFETY: the caller's promise: the load ends within either panel's chunk.
                let b = unsafe { d.right(self.words::<D>(panel, first, j), place) };
                for (sums, &a) in sums.iter_mut().zip(&a) {
                    sums[j] = d.dot(a, b, sums[j]);
                }
            }
        }
    }
}
