//! The micro-kernel of every format: the sums of one chunk for a tile of the product, in registers.

use super::{
    arch::Vectors,
    format::{DotTask, Dots, Format},
    tile::{CHUNK, Total, WIDTH},
};

/// One chunk of a tile of `rows` rows and [`Dots::PANEL`] columns.
pub struct DotTile<'a, F: Format> {
    /// At most [`Dots::ROWS`].
    pub rows: usize,
    /// Terms in this chunk, at most [`CHUNK`].
    pub depth: usize,
    /// Packed rows of the left operand.
    pub a: &'a [F::Word],
    /// The panel's words of this chunk.
    pub b: &'a [F::Word],
    /// `[rows, columns]`.
    pub totals: &'a mut [F::Number],
    /// Whether `totals` holds anything yet.
    pub total: Total,
}

/// Adds `Σ a·b` over the chunk to the totals.
impl<F: Format> DotTask<F> for DotTile<'_, F> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, dots: D) {
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match self.rows {
                    // What a level has not registers enough for is left out when compiled.
                    $($rows if $rows <= D::ROWS => self.accumulate::<D, $rows>(dots),)*
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
        let v = d.vectors();
        let lanes = D::PANEL / WIDTH;
        let Self { depth, a, b, .. } = self;
        let groups = depth.div_ceil(F::GROUP);
        assert!(depth <= CHUNK && a.len() >= ROWS * D::ROW_WORDS);
        assert!(b.len() >= groups * D::PANEL && self.totals.len() >= ROWS * D::PANEL);
        let row = |i: usize| a.as_ptr().wrapping_add(i * D::ROW_WORDS);
        // SAFETY: i < ROWS, and `a` holds so many packed rows.
        let mut sums: [_; ROWS] = std::array::from_fn(|i| [unsafe { d.start(row(i)) }; WIDTH]);
        for group in 0..groups {
            let b: [D::Right; WIDTH] = std::array::from_fn(|j| {
                // SAFETY: group < groups, so this ends within the groups * PANEL words of `b`.
                unsafe { d.right(b.as_ptr().add(group * D::PANEL + j * lanes)) }
            });
            if ROWS > 3 {
                // The rows of the tile below lie next, and each step fetches a line of them.
                let line = 64 / size_of::<F::Word>();
                v.prefetch(row(ROWS).wrapping_add(group * line).cast());
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                // SAFETY: i < ROWS, `a` holds so many packed rows, and group < CHUNK / GROUP.
                let a = unsafe { d.left(row(i), group) };
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = d.dot(a, b, *sum);
                }
            }
        }
        // A loop of this length would not be unrolled, and would keep the sums in memory.
        macro_rules! finish_rows {
            ($($i:literal)*) => {
                $(if $i < ROWS {
                    // SAFETY: i < ROWS, and `a` holds so many packed rows.
                    unsafe { self.finish_row(d, row($i), sums[if $i < ROWS { $i } else { 0 }], $i) };
                })*
            };
        }
        finish_rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);
    }

    /// Adds a row's sums to the totals.
    ///
    /// # Safety
    /// `row` starts [`Dots::ROW_WORDS`] words.
    #[inline(always)]
    unsafe fn finish_row<D: Dots<F>>(
        &mut self,
        d: D,
        row: *const F::Word,
        sums: [D::Sum; WIDTH],
        i: usize,
    ) {
        let v = d.vectors();
        let lanes = D::PANEL / WIDTH;
        let totals = &mut self.totals[i * D::PANEL..][..D::PANEL];
        for (sum, totals) in sums.into_iter().zip(totals.chunks_exact_mut(lanes)) {
            // SAFETY: the caller's promise.
            let sum = unsafe { d.numbers(sum, row) };
            let total = match self.total {
                Total::New => sum,
                // SAFETY: `totals` holds a vector's numbers.
                Total::Running => v.add(unsafe { v.load(totals.as_ptr()) }, sum),
            };
            // SAFETY: `totals` holds a vector's numbers.
            unsafe { v.store(total, totals.as_mut_ptr()) };
        }
    }
}
