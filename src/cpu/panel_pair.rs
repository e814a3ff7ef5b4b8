//! The micro-kernel of a row or two: two panels side by side.
//!
//! Each step of a panel adds to all sums of a row, and the next step waits for these additions. A row by itself has as many
//! sums as a panel has vectors, too few to fill that time: reading a weight from the cache would wait for arithmetic. Two
//! panels have twice as many, in the same order each.

use super::{
    Real,
    arch::Vectors,
    dot_tile::NEXT_PANEL,
    format::{DotTask, Dots, Format},
    tile::WIDTH,
};

/// The most rows: with more, one panel has sums enough.
pub const MOST_ROWS: usize = 2;

/// Bytes of a panel from which on this pays. Two panels are two streams from the memory, and the CPU foresees a short
/// one too late.
pub const LEAST_BYTES: usize = 48 << 10;

/// How many panels there are.
const PANELS: usize = 2;

/// All chunks of the only tile there is of two panels.
pub struct PanelPair<'a, F: Format> {
    /// At most [`MOST_ROWS`], and twice as many at most [`Dots::ROWS`].
    pub rows: usize,
    /// Terms in all.
    pub depth: usize,
    /// Packed rows; the next chunk's are so many words behind.
    pub a: &'a [F::Word],
    pub a_stride: usize,
    /// The words of both panels, one behind the other.
    pub b: &'a [F::Word],
    /// `[panels, rows, columns]`, overwritten.
    pub totals: &'a mut [F::Number],
}

impl<F: Format> DotTask<F> for PanelPair<'_, F> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, dots: D) {
        match self.rows {
            1 => self.accumulate::<D, 1>(dots),
            // A level with fewer registers would keep the sums in memory.
            MOST_ROWS if 2 * MOST_ROWS <= D::ROWS => self.accumulate::<D, MOST_ROWS>(dots),
            rows => panic!("a pair of panels of {rows} rows"),
        }
    }
}

impl<F: Format> PanelPair<'_, F> {
    #[inline(always)]
    fn accumulate<D: Dots<F>, const ROWS: usize>(self, d: D) {
        let v = d.vectors();
        let lanes = D::PANEL / WIDTH;
        let panel_words = self.b.len() / PANELS;
        assert_eq!(panel_words, F::column_words(self.depth) * D::PANEL);
        let mut totals = [[[v.splat(F::Number::of(0.0)); WIDTH]; ROWS]; PANELS];
        for chunk in 0..self.depth.div_ceil(F::CHUNK).max(1) {
            let depth = (self.depth - chunk * F::CHUNK).min(F::CHUNK);
            let groups = depth.div_ceil(F::GROUP);
            let a = &self.a[chunk * self.a_stride..];
            let b = &self.b[chunk * F::CHUNK_WORDS * D::PANEL..];
            assert!(a.len() >= ROWS * D::ROW_WORDS);
            assert!(b.len() >= panel_words + (F::HEAD + groups) * D::PANEL);
            let row = |i: usize| a.as_ptr().wrapping_add(i * D::ROW_WORDS);
            let words = |panel: usize, row: usize, j: usize| {
                let at = panel * panel_words + row * D::PANEL + j * lanes;
                b.as_ptr().wrapping_add(at)
            };
            // In loops: a `from_fn` within another is called, and would hand the sums over in memory.
            // SAFETY: `a` and `b` hold packed rows and columns.
            let mut sums = [[[unsafe { d.start(row(0), words(0, 0, 0)) }; WIDTH]; ROWS]; PANELS];
            for (panel, sums) in sums.iter_mut().enumerate() {
                for (i, sums) in sums.iter_mut().enumerate() {
                    for (j, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: i < ROWS, panel < PANELS and j < WIDTH: as above.
                        *sum = unsafe { d.start(row(i), words(panel, 0, j)) };
                    }
                }
            }
            for group in 0..groups {
                // SAFETY: `a` holds ROWS packed rows, and group < CHUNK / GROUP.
                let a: [D::Left; ROWS] = std::array::from_fn(|i| unsafe { d.left(row(i), group) });
                for (panel, sums) in sums.iter_mut().enumerate() {
                    for j in 0..WIDTH {
                        // SAFETY: group < groups, so this ends within the chunk's words of either panel.
                        let b = unsafe { d.right(words(panel, F::HEAD + group, j)) };
                        for (sums, &a) in sums.iter_mut().zip(&a) {
                            sums[j] = d.dot(a, b, sums[j]);
                        }
                    }
                }
            }
            for (panel, (sums, totals)) in sums.into_iter().zip(&mut totals).enumerate() {
                for (i, (sums, totals)) in sums.into_iter().zip(totals).enumerate() {
                    for (j, (sum, total)) in sums.into_iter().zip(totals).enumerate() {
                        // SAFETY: as where the sums start.
                        let sum = unsafe { d.numbers(sum, row(i), words(panel, 0, j)) };
                        *total = match chunk {
                            0 => sum,
                            _ => v.add(*total, sum),
                        };
                    }
                }
            }
        }
        let to = self.totals[..PANELS * ROWS * D::PANEL].chunks_exact_mut(lanes);
        for (&total, to) in totals.as_flattened().as_flattened().iter().zip(to) {
            // SAFETY: `to` holds a vector's numbers.
            unsafe { v.store(total, to.as_mut_ptr()) };
        }
        // The next pair's first panel continues the second stream; to its second one none leads.
        let next = self.b.as_ptr().wrapping_add((PANELS + 1) * panel_words);
        for line in (0..NEXT_PANEL).step_by(64) {
            v.prefetch(next.cast::<u8>().wrapping_add(line).cast());
        }
    }
}
