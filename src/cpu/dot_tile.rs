//! The micro-kernel of every format: the sums of one chunk for a tile of the product, in registers.

use super::{
    arch::Vectors,
    format::{DotTask, Dots, Format},
    tile::{Total, WIDTH},
};

/// One chunk of a tile of `rows` rows and [`Dots::PANEL`] columns.
pub struct DotTile<'a, F: Format> {
    /// At most [`Dots::ROWS`].
    pub rows: usize,
    /// Terms in this chunk, at most [`Format::CHUNK`].
    pub depth: usize,
    /// Packed rows of the left operand.
    pub a: &'a [F::Word],
    /// The panel's words of this chunk, and the next tiles' behind them.
    pub b: &'a [F::Word],
    /// Whether the words behind `b`'s chunk are needed soon.
    pub ahead: Ahead,
    /// `[rows, columns]`.
    pub totals: &'a mut [F::Number],
    /// Whether `totals` holds anything yet.
    pub total: Total,
}

/// What a tile fetches of the right operand while it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// Nothing: another tile of rows takes the same chunk.
    Nothing,
    /// The next chunk, which lies behind this one.
    NextChunk,
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

/// Several whole chunks of a tile of few rows.
///
/// Few rows have few sums, and a sum waits for itself: the chunks' sums, which are added up only at the end, are as many
/// more that do not wait for each other. What is left to wait for is the memory.
pub struct FewRows<'a, F: Format> {
    /// At most [`FewRows::MOST_ROWS`].
    pub rows: usize,
    /// From the first chunk on; the next chunk's rows are so many words behind.
    pub a: &'a [F::Word],
    pub a_stride: usize,
    /// The panel's words from the first chunk on.
    pub b: &'a [F::Word],
    /// [`FewRows::chunks`] of the rows.
    pub totals: &'a mut [F::Number],
    /// Whether `totals` holds anything yet.
    pub total: Total,
}

impl<F: Format> FewRows<'_, F> {
    /// More rows have sums enough.
    pub const MOST_ROWS: usize = 3;

    /// How many chunks are taken at once for so many rows.
    pub fn chunks(rows: usize) -> usize {
        match rows {
            1 => 4,
            _ => 2,
        }
    }
}

impl<F: Format> DotTask<F> for FewRows<'_, F> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, dots: D) {
        match self.rows {
            1 => self.accumulate::<D, 1, 4>(dots),
            2 => self.accumulate::<D, 2, 2>(dots),
            3 => self.accumulate::<D, 3, 2>(dots),
            rows => panic!("a tile of {rows} rows"),
        }
    }
}

impl<F: Format> FewRows<'_, F> {
    #[inline(always)]
    fn accumulate<D: Dots<F>, const ROWS: usize, const CHUNKS: usize>(self, d: D) {
        let v = d.vectors();
        let lanes = D::PANEL / WIDTH;
        let Self { a, a_stride, b, .. } = self;
        let groups = F::CHUNK / F::GROUP;
        assert!(a.len() >= (CHUNKS - 1) * a_stride + ROWS * D::ROW_WORDS);
        assert!(b.len() >= CHUNKS * F::CHUNK_WORDS * D::PANEL);
        assert!(self.totals.len() >= ROWS * D::PANEL);
        let row = |c: usize, i: usize| a.as_ptr().wrapping_add(c * a_stride + i * D::ROW_WORDS);
        let heads = |c: usize, j: usize| {
            b.as_ptr()
                .wrapping_add(c * F::CHUNK_WORDS * D::PANEL + j * lanes)
        };
        let mut sums: [[[D::Sum; WIDTH]; ROWS]; CHUNKS] = std::array::from_fn(|c| {
            // SAFETY: c < CHUNKS, i < ROWS and j < WIDTH, and `a` and `b` hold so many packed rows and columns.
            let start = |i| std::array::from_fn(|j| unsafe { d.start(row(c, i), heads(c, j)) });
            std::array::from_fn(start)
        });
        for group in 0..groups {
            for (c, sums) in sums.iter_mut().enumerate() {
                let b: [D::Right; WIDTH] = std::array::from_fn(|j| {
                    // SAFETY: this ends within the CHUNKS * CHUNK_WORDS * PANEL words of `b`.
                    unsafe { d.right(heads(c, j).add((F::HEAD + group) * D::PANEL)) }
                });
                for (i, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: c < CHUNKS and i < ROWS, and `a` holds so many packed rows; group < CHUNK / GROUP.
                    let a = unsafe { d.left(row(c, i), group) };
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = d.dot(a, b, *sum);
                    }
                }
            }
        }
        for (i, totals) in self
            .totals
            .chunks_exact_mut(D::PANEL)
            .take(ROWS)
            .enumerate()
        {
            for (j, totals) in totals.chunks_exact_mut(lanes).enumerate() {
                let mut total = None;
                for (c, sums) in sums.iter().enumerate() {
                    // SAFETY: as of the start.
                    let sum = unsafe { d.numbers(sums[i][j], row(c, i), heads(c, j)) };
                    total = Some(match (total, self.total) {
                        (Some(total), _) => v.add(total, sum),
                        (None, Total::New) => sum,
                        // SAFETY: `totals` holds a vector's numbers.
                        (None, Total::Running) => v.add(unsafe { v.load(totals.as_ptr()) }, sum),
                    });
                }
                if let Some(total) = total {
                    // SAFETY: `totals` holds a vector's numbers.
                    unsafe { v.store(total, totals.as_mut_ptr()) };
                }
            }
        }
    }
}

impl<F: Format> DotTile<'_, F> {
    #[inline(always)]
    fn accumulate<D: Dots<F>, const ROWS: usize>(mut self, d: D) {
        let v = d.vectors();
        let lanes = D::PANEL / WIDTH;
        let Self { depth, a, b, .. } = self;
        let groups = depth.div_ceil(F::GROUP);
        let next = match self.ahead {
            Ahead::Nothing => std::ptr::null(),
            Ahead::NextChunk => b.as_ptr().wrapping_add((F::HEAD + groups) * D::PANEL),
        };
        assert!(depth <= F::CHUNK && a.len() >= ROWS * D::ROW_WORDS);
        assert!(b.len() >= (F::HEAD + groups) * D::PANEL);
        assert!(self.totals.len() >= ROWS * D::PANEL);
        let row = |i: usize| a.as_ptr().wrapping_add(i * D::ROW_WORDS);
        let heads = |j: usize| b.as_ptr().wrapping_add(j * lanes);
        let mut sums: [[_; WIDTH]; ROWS] = std::array::from_fn(|i| {
            // SAFETY: i < ROWS and j < WIDTH, and `a` and `b` hold so many packed rows and columns.
            std::array::from_fn(|j| unsafe { d.start(row(i), heads(j)) })
        });
        for group in 0..groups {
            let b: [D::Right; WIDTH] = std::array::from_fn(|j| {
                // SAFETY: group < groups, so this ends within the (HEAD + groups) * PANEL words of `b`.
                unsafe { d.right(heads(j).add((F::HEAD + group) * D::PANEL)) }
            });
            if ROWS > 3 {
                // The rows of the tile below lie next, and each step fetches a line of them.
                let line = 64 / size_of::<F::Word>();
                v.prefetch(row(ROWS).wrapping_add(group * line).cast());
                if !next.is_null() {
                    // A panel's row is two lines of most formats and levels.
                    v.prefetch_far(next.wrapping_add(group * D::PANEL).cast());
                    v.prefetch_far(next.wrapping_add(group * D::PANEL + line).cast());
                }
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
                    // SAFETY: i < ROWS, and `a` and `b` hold so many packed rows and columns.
                    unsafe { self.finish_row(d, row($i), sums[if $i < ROWS { $i } else { 0 }], $i) };
                })*
            };
        }
        finish_rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);
    }

    /// Adds a row's sums to the totals.
    ///
    /// # Safety
    /// `row` starts [`Dots::ROW_WORDS`] words, and `b` holds [`Format::HEAD`] rows of a panel.
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
        for (j, (sum, totals)) in sums
            .into_iter()
            .zip(totals.chunks_exact_mut(lanes))
            .enumerate()
        {
            // SAFETY: the caller's promise, and j < WIDTH.
            let sum = unsafe { d.numbers(sum, row, self.b.as_ptr().wrapping_add(j * lanes)) };
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
