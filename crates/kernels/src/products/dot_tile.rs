//! The micro-kernel for every format: one chunk in one product tile, with the accumulators in registers.
//!
//! For each group it loads [`WIDTH`] panel vectors, broadcasts each row's group, and adds `rows · WIDTH` dot
//! products to the accumulators. A full tile is as high as the register file allows: its accumulators, these vectors
//! and one broadcast are never spilled.
//!
//! ```text
//!                  b: one row of words of the panel
//!                  [ vector 0 ][ vector 1 ]
//! a: row 0 group → [  sum 00  ][  sum 01  ]
//!    row 1 group → [  sum 10  ][  sum 11  ]      ROWS × PANEL sums
//!    ..                  ..          ..
//! ```

use super::{Dots, Format, Total, WIDTH, parts};
use crate::vectors::prefetch::{self, LINE};
use crate::vectors::{Task, Vectors};

/// A chunk in a tile with `rows` rows and [`Dots::PANEL`] columns.
pub struct DotTile<'a, F: Format> {
    /// Rows in the tile, at most [`Dots::ROWS`].
    pub rows: usize,
    /// This chunk's depth, at most [`Format::CHUNK`].
    pub depth: usize,
    /// The left operand: packed rows, [`Dots::ROW_WORDS`] apart.
    pub a: &'a [F::Word],
    /// The right operand: the panel's words, starting with this chunk.
    pub b: &'a [F::Word],
    pub layout: F::Layout,
    /// The data to prefetch after this chunk.
    pub ahead: Ahead,
    /// Running totals, `[rows, Dots::PANEL]`.
    pub totals: &'a mut [F::Element],
    /// Tells whether `totals` already holds earlier chunks' sums.
    pub total: Total,
}

/// The right operand's data that a tile prefetches while it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// No prefetch, because the columns are packed on demand.
    Nothing,
    /// The next chunk, which directly follows this one.
    NextChunk,
    /// A share of the next chunk, divided equally among the tiles that use this chunk. Prefetching it all during
    /// one tile would exceed the cache lines that a core can wait for.
    ShareOfNextChunk { tile: usize, n_tiles: usize },
}

/// Adds `Σ a·b` over the chunk to the totals.
impl<F: Format, D: Dots<F>> Task<D> for DotTile<'_, F> {
    #[inline(always)]
    fn compute(self, dots: D) {
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match self.rows {
                    // The compiler removes tile heights for which this instruction set lacks registers.
                    $($rows if const { $rows <= D::ROWS } => self.accumulate::<D, $rows>(dots),)*
                    rows => panic!("a tile of {rows} rows"),
                }
            };
        }
        by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
    }
}

impl<F: Format> DotTile<'_, F> {
    #[inline(always)]
    fn accumulate<D: Dots<F>, const ROWS: usize>(mut self, d: D) {
        let lanes = D::PANEL / WIDTH;
        let Self {
            depth,
            a,
            b,
            layout,
            ..
        } = self;
        let groups = depth.div_ceil(F::GROUP);
        let (scale_words, words) = (F::scale_words(layout, depth), F::chunk_words(layout, depth));
        let next = b.as_ptr().wrapping_add(words * D::PANEL).cast::<u8>();
        let panel_bytes = F::GROUP_WORDS * D::PANEL * size_of::<F::Word>() / F::GROUPS;
        // Bytes that the prefetch address advances for each group, and a mask that selects the groups that
        // prefetch: those with none of the mask's bits.
        let (ahead, step, mask) = match self.ahead {
            // One superfluous hint rather than a second condition in the loop.
            Ahead::Nothing => (next, 0, usize::MAX),
            Ahead::NextChunk => (next, panel_bytes, 0),
            Ahead::ShareOfNextChunk { tile, n_tiles } => {
                let groups_per_line = (n_tiles * LINE / panel_bytes).clamp(1, LINE);
                let shift = groups_per_line.ilog2();
                let share = groups.div_ceil(1 << shift) * LINE;
                (
                    next.wrapping_add(tile * share),
                    LINE >> shift,
                    (1 << shift) - 1,
                )
            }
        };
        assert!(depth <= F::CHUNK && a.len() >= ROWS * D::ROW_WORDS);
        assert!(b.len() >= words * D::PANEL);
        assert!(self.totals.len() >= ROWS * D::PANEL);
        let row = |i: usize| a.as_ptr().wrapping_add(i * D::ROW_WORDS);
        let scales = |j: usize| b.as_ptr().wrapping_add(j * lanes);
        let part_terms = F::part(layout);
        let groups_of_part = part_terms / F::GROUP;
        for part in 0..parts(depth, part_terms).max(1) {
            // Loops rather than nested `from_fn`: the inner closure would not be inlined, and would pass the sums
            // through memory.
            // SAFETY: by the assertions above, `a` holds ROWS packed rows, and `b` the panel's scales.
            let mut sums = [[unsafe { d.start(row(0), scales(0)) }; WIDTH]; ROWS];
            for (i, sums) in sums.iter_mut().enumerate() {
                for (j, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: i < ROWS and j < WIDTH, and the assertions above.
                    *sum = unsafe { d.start(row(i), scales(j)) };
                }
            }
            let in_part = part * groups_of_part..groups.min((part + 1) * groups_of_part);
            let added = match F::MOST_PARTS {
                // SAFETY: as above; `b` holds `groups` word rows after its scales.
                1 => unsafe { d.add_groups::<ROWS>(a.as_ptr(), b.as_ptr(), groups, &mut sums) },
                _ => 0,
            };
            for group in in_part.start + added..in_part.end {
                if ROWS > 3 {
                    // The rows of the next tile follow this tile's. Each group prefetches one cache line from them.
                    let line = LINE / size_of::<F::Word>();
                    prefetch::near(row(ROWS).wrapping_add(group * line));
                    if group & mask == 0 {
                        let ahead = ahead.wrapping_add(group * step);
                        prefetch::far(ahead);
                        // With AVX-512 a panel row is two cache lines. Otherwise it is at most one, and the second
                        // hint runs one row further ahead.
                        if self.ahead == Ahead::NextChunk {
                            prefetch::far(ahead.wrapping_add(LINE));
                        }
                    }
                }
                // No branch between widening the columns and multiplying them: with a branch, the compiler
                // spilled sums to keep the widened operands (int8 on NEON).
                let at = (scale_words + group / F::GROUPS * F::GROUP_WORDS) * D::PANEL;
                let place = group % F::GROUPS;
                // No `from_fn`, as above: in its closure, a word's widening was not inlined.
                // SAFETY: group < groups, so the loads end within `b`.
                let b: [D::Right; WIDTH] = unsafe {
                    [
                        d.right(scales(0).add(at), place),
                        d.right(scales(1).add(at), place),
                    ]
                };
                for (i, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: i < ROWS, `a` holds ROWS packed rows, and group < CHUNK / GROUP.
                    let a = unsafe { d.left(row(i), group) };
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = d.dot(a, b, *sum);
                    }
                }
            }
            // SAFETY: the panel's scales, as above, for a part in the chunk.
            let column_scales = unsafe { d.scales(layout, [scales(0), scales(1)], part) };
            let total = match part {
                0 => self.total,
                _ => Total::Running,
            };
            // Unrolled by hand: the compiler does not unroll a loop this long, and would keep the sums in memory.
            macro_rules! finish_rows {
            ($($i:literal)*) => {
                $(if $i < ROWS {
                    // SAFETY: i < ROWS, and the assertions above.
                    unsafe { self.finish_row(d, (row($i), part), sums[if $i < ROWS { $i } else { 0 }], column_scales, ($i, total)) };
                })*
            };
        }
            finish_rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);
        }
    }

    /// Adds one part's sums in row `i` to the row's totals.
    ///
    /// # Safety
    /// `row` points to [`Dots::ROW_WORDS`] packed words that include the part.
    #[inline(always)]
    unsafe fn finish_row<D: Dots<F>>(
        &mut self,
        d: D,
        (row, part): (*const F::Word, usize),
        sums: [D::Sum; WIDTH],
        scales: [D::Scales; WIDTH],
        (i, total): (usize, Total),
    ) {
        let v = d.vectors();
        let lanes = D::PANEL / WIDTH;
        let totals = &mut self.totals[i * D::PANEL..][..D::PANEL];
        let sums = sums.into_iter().zip(scales);
        for ((sum, scales), totals) in sums.zip(totals.chunks_exact_mut(lanes)) {
            // SAFETY: the caller's promise.
            let sum = unsafe { d.to_floats(sum, row, part, scales) };
            let total = match total {
                Total::New => sum,
                // SAFETY: `totals` holds a whole vector.
                Total::Running => v.add(unsafe { v.load(totals.as_ptr()) }, sum),
            };
            // SAFETY: as above.
            unsafe { v.store(total, totals.as_mut_ptr()) };
        }
    }
}
