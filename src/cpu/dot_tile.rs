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

/// All chunks of the only tile there is of a panel, for which it is read from memory.
///
/// The panel is read from end to end, as is the next, which lies behind it: one stream, which the CPU foresees.
pub struct WholePanel<'a, F: Format> {
    /// At most [`Dots::ROWS`].
    pub rows: usize,
    /// Terms in all.
    pub depth: usize,
    /// Packed rows; the next chunk's are so many words behind.
    pub a: &'a [F::Word],
    pub a_stride: usize,
    /// The panel's words.
    pub b: &'a [F::Word],
    /// `[rows, columns]`, overwritten.
    pub totals: &'a mut [F::Number],
}

/// Bytes of the next panel that are fetched while this one's results are written.
pub(super) const NEXT_PANEL: usize = 2 << 10;

impl<F: Format> DotTask<F> for WholePanel<'_, F> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, dots: D) {
        for chunk in 0..self.depth.div_ceil(F::CHUNK).max(1) {
            let first = chunk * F::CHUNK;
            let tile = DotTile::<F> {
                rows: self.rows,
                depth: (self.depth - first).min(F::CHUNK),
                a: &self.a[chunk * self.a_stride..],
                b: &self.b[chunk * F::CHUNK_WORDS * D::PANEL..],
                ahead: Ahead::NextChunk,
                totals: self.totals,
                total: match chunk {
                    0 => Total::New,
                    _ => Total::Running,
                },
            };
            tile.run(dots);
        }
        let end = self.b.as_ptr().wrapping_add(self.b.len());
        for line in (0..NEXT_PANEL).step_by(64) {
            let line = end.cast::<u8>().wrapping_add(line);
            dots.vectors().prefetch(line.cast());
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
        // In loops: a `from_fn` within another is called, and would hand the sums over in memory.
        // SAFETY: `a` and `b` hold packed rows and columns.
        let mut sums = [[unsafe { d.start(row(0), heads(0)) }; WIDTH]; ROWS];
        for (i, sums) in sums.iter_mut().enumerate() {
            for (j, sum) in sums.iter_mut().enumerate() {
                // SAFETY: i < ROWS and j < WIDTH, and `a` and `b` hold so many packed rows and columns.
                *sum = unsafe { d.start(row(i), heads(j)) };
            }
        }
        for group in 0..groups {
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
            // In one piece with the products: what is widened before a branch, the compiler keeps as wide as it can get.
            let b: [D::Right; WIDTH] = std::array::from_fn(|j| {
                // SAFETY: group < groups, so this ends within the (HEAD + groups) * PANEL words of `b`.
                unsafe { d.right(heads(j).add((F::HEAD + group) * D::PANEL)) }
            });
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
