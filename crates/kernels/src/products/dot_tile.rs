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

use super::{Blocking, Dots, Format, Total, Totals, WIDTH, format::Tile, parts};
use crate::threads::parallel;
use crate::vectors::prefetch::{self, LINE};
use crate::vectors::{Task, Vectors};

/// A chunk in tiles of [`Dots::PANEL`] columns.
pub struct DotTiles<'a, F: Format> {
    /// Rows in all tiles, of which each has at most [`Dots::ROWS`].
    pub rows: usize,
    /// This chunk's depth, at most [`Format::CHUNK`].
    pub depth: usize,
    /// The left operand: packed rows, [`Dots::ROW_WORDS`] apart.
    pub a: &'a [F::Word],
    /// The right operand.
    pub b: PanelChunk<'a, F::Word>,
    pub layout: F::Layout,
    /// The data to prefetch after this chunk.
    pub ahead: Ahead,
    /// Running totals, `[rows, Dots::PANEL]`.
    pub totals: Totals<'a, F::Element>,
    /// Tells whether `totals` already holds earlier chunks' sums.
    pub total: Total,
}

/// One chunk of a panel.
#[derive(Clone, Copy, Debug)]
pub struct PanelChunk<'a, W> {
    pub form: Form,
    /// The scale words, or the widened scales.
    pub scales: &'a [W],
    /// The values' words.
    pub values: &'a [W],
}

impl<'a, W> PanelChunk<'a, W> {
    /// Creates a chunk from its packed words.
    pub fn packed(scales: &'a [W], values: &'a [W]) -> Self {
        Self {
            form: Form::Packed,
            scales,
            values,
        }
    }
}

/// How a panel's chunk is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The packed bytes.
    Packed,
    /// The bytes that [`Widen`](super::Widen) wrote.
    Widened,
}

/// The memory that tiles prefetch while they compute.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    pub from: *const u8,
    pub bytes: usize,
}

impl Ahead {
    /// No prefetch.
    pub const NOTHING: Self = Self {
        from: std::ptr::null(),
        bytes: 0,
    };

    /// Prefetches as many words as a packed chunk has, directly after it: the next chunk.
    pub fn next_chunk<W>(chunk: &[W]) -> Self {
        Self {
            from: chunk.as_ptr_range().end.cast(),
            bytes: size_of_val(chunk),
        }
    }

    /// Returns one tile's share, if several tiles use this chunk. Prefetching it all during one tile would exceed the
    /// cache lines that a core can wait for.
    pub fn share(self, tile: usize, n_tiles: usize) -> Self {
        let lines = parallel::part(self.bytes.div_ceil(LINE), n_tiles, tile);
        Self {
            from: self.from.wrapping_add(lines.start * LINE),
            bytes: lines.len() * LINE,
        }
    }
}

/// Adds `Σ a·b` over the chunk to the totals.
impl<F: Format, D: Dots<F>> Task<D> for DotTiles<'_, F> {
    #[inline(always)]
    fn compute(self, dots: D) {
        match self.b.form {
            Form::Packed => self.by_tiles::<D, false>(dots),
            Form::Widened => dots.multiply_widened(self),
        }
    }
}

impl<F: Format> Tile<F> for DotTiles<'_, F> {
    #[inline(always)]
    fn multiply_as<G, D: Dots<G>>(self, d: D)
    where
        G: Format<Element = F::Element, Word = F::Word, Layout = F::Layout>,
    {
        d.enter(SharedTiles(DotTiles::<G> {
            rows: self.rows,
            depth: self.depth,
            a: self.a,
            b: self.b,
            layout: self.layout,
            ahead: self.ahead,
            totals: self.totals,
            total: self.total,
        }));
    }
}

/// Tiles of a widened chunk, in a format that others share.
struct SharedTiles<'a, F: Format>(DotTiles<'a, F>);

impl<F: Format, D: Dots<F>> Task<D> for SharedTiles<'_, F> {
    #[inline(always)]
    fn compute(self, d: D) {
        self.0.by_tiles::<D, true>(d);
    }
}

impl<F: Format> DotTiles<'_, F> {
    /// Returns tile `i` of `n`, whose rows are packed `row_words` apart. No closure is called for each tile, since it would
    /// be compiled without the instruction set.
    #[inline(always)]
    pub fn tile(
        &mut self,
        i: usize,
        n: usize,
        row_words: usize,
        blocking: Blocking,
    ) -> DotTiles<'_, F> {
        let rows = blocking.part(self.rows, n, i);
        DotTiles {
            rows: rows.len(),
            a: &self.a[rows.start * row_words..],
            ahead: self.ahead.share(i, n),
            totals: self.totals.part(rows),
            ..*self
        }
    }

    #[inline(always)]
    fn by_tiles<D: Dots<F>, const WIDENED: bool>(mut self, dots: D) {
        let n = self.rows.div_ceil(D::ROWS);
        for i in 0..n {
            let tile = self.tile(i, n, D::ROW_WORDS, Blocking::OF_VECTORS);
            tile.by_rows::<D, WIDENED>(dots);
        }
    }

    #[inline(always)]
    fn by_rows<D: Dots<F>, const WIDENED: bool>(self, dots: D) {
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match self.rows {
                    // The compiler removes tile heights for which this instruction set lacks registers.
                    $($rows if const { $rows <= D::ROWS } => self.accumulate::<D, WIDENED, $rows>(dots),)*
                    rows => panic!("a tile of {rows} rows"),
                }
            };
        }
        by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
    }

    #[inline(always)]
    fn accumulate<D: Dots<F>, const WIDENED: bool, const ROWS: usize>(mut self, d: D) {
        let lanes = D::PANEL / WIDTH;
        let Self {
            depth,
            a,
            b,
            layout,
            ahead,
            ..
        } = self;
        let groups = depth.div_ceil(F::GROUP);
        let part_terms = F::part(layout);
        let n_parts = parts(depth, part_terms).max(1);
        // Bytes that the prefetch address advances for each group, whether a group prefetches two cache lines, and a
        // mask that selects the groups that prefetch: those with none of the mask's bits. A loop over more lines made
        // the compiler spill sums, so that a part prefetches them before its sums begin.
        let mut of_part = 0;
        let (step, two_lines, mask) = match ahead.bytes / (F::CHUNK / F::GROUP) {
            // One superfluous hint rather than a second condition in the loop.
            0 => (0, false, usize::MAX),
            step if step >= 3 * LINE && F::MOST_PARTS > 1 => {
                of_part = ahead.bytes / n_parts;
                (0, false, usize::MAX)
            }
            step @ ..LINE => {
                let shift = LINE.ilog2() - step.next_power_of_two().ilog2();
                (LINE >> shift, false, (1 << shift) - 1)
            }
            step => (step, step > LINE, 0),
        };
        // Unrolled groups prefetch lines of the next tile's rows, and bytes of the next chunk.
        let near_lines = (ROWS * D::ROW_WORDS * D::UNROLLED)
            .div_ceil(F::CHUNK / F::GROUP * LINE / size_of::<F::Word>());
        let far_bytes = ahead.bytes / (F::CHUNK / F::GROUP) * D::UNROLLED;
        assert!(depth <= F::CHUNK && a.len() >= ROWS * D::ROW_WORDS);
        let scale_words = match WIDENED {
            true => D::WIDENED.scales,
            false => F::scale_words(layout, depth) * D::PANEL,
        };
        let value_words = match WIDENED {
            true => groups * D::TILE_WORDS,
            false => groups.div_ceil(F::GROUPS) * F::GROUP_WORDS,
        };
        assert!(b.scales.len() >= scale_words && b.values.len() >= value_words * D::PANEL);
        assert!(self.totals.holds(ROWS, D::PANEL));
        let row = |i: usize| a.as_ptr().wrapping_add(i * D::ROW_WORDS);
        let scales = |j: usize| b.scales.as_ptr().wrapping_add(j * lanes);
        let groups_of_part = part_terms / F::GROUP;
        for part in 0..n_parts {
            if ROWS > 2 {
                for at in (part * of_part..(part + 1) * of_part).step_by(LINE) {
                    prefetch::far(ahead.from.wrapping_add(at));
                }
            }
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
                // SAFETY: as above; `b` holds `groups` word rows.
                1 => unsafe {
                    d.add_groups::<ROWS>(a.as_ptr(), b.values.as_ptr(), groups, &mut sums)
                },
                _ => 0,
            };
            // No branch between widening the columns and multiplying them: with a branch, the compiler spilled sums to
            // keep the widened operands (int8 on NEON).
            // No `from_fn`, as above: in its closure, a word's widening was not inlined.
            macro_rules! add {
                ($group:expr) => {
                    let group = $group;
                    let b: [D::Right; WIDTH] = if WIDENED {
                        let at = group * WIDTH * D::TILE_WORDS * lanes;
                        let from = b.values.as_ptr().wrapping_add(at);
                        // SAFETY: group < groups, so the loads end within `b`.
                        unsafe { [d.widened(from), d.widened(from.add(D::TILE_WORDS * lanes))] }
                    } else {
                        let at = group / F::GROUPS * F::GROUP_WORDS * D::PANEL;
                        let place = group % F::GROUPS;
                        let from = b.values.as_ptr().wrapping_add(at);
                        // SAFETY: as above.
                        unsafe { [d.right(from, place), d.right(from.add(lanes), place)] }
                    };
                    for (i, sums) in sums.iter_mut().enumerate() {
                        // SAFETY: i < ROWS, `a` holds ROWS packed rows, and group < CHUNK / GROUP.
                        let a = unsafe { d.left(row(i), group) };
                        for (sum, b) in sums.iter_mut().zip(b) {
                            *sum = d.dot(a, b, *sum);
                        }
                    }
                };
            }
            // Unrolled by hand, because the compiler does not unroll so long a loop.
            macro_rules! add_unrolled {
                ($first:ident, $step:ident: $($i:literal)*) => {
                    $(if $i < D::UNROLLED {
                        // The rows of the next tile follow this tile's.
                        if ROWS > 2 && $i < near_lines {
                            let lines = $step * near_lines + $i;
                            prefetch::near(row(ROWS).wrapping_add(lines * LINE / size_of::<F::Word>()));
                        }
                        add!($first + $i);
                    })*
                };
            }
            let first = in_part.start + added;
            // Where unrolled groups would prefetch more than one line of the next chunk, reading it is the bottleneck.
            let n_steps = match D::UNROLLED {
                2.. if far_bytes <= LINE => (in_part.end - first) / D::UNROLLED,
                _ => 0,
            };
            for step in 0..n_steps {
                if ROWS > 2 && far_bytes > 0 {
                    prefetch::far(ahead.from.wrapping_add(step * far_bytes));
                }
                let next = first + step * D::UNROLLED;
                add_unrolled!(next, step: 0 1 2 3);
            }
            let next = first + n_steps * D::UNROLLED;
            for group in next..in_part.end {
                if ROWS > 2 {
                    // Each group prefetches one cache line from the next tile's rows.
                    let line = LINE / size_of::<F::Word>();
                    prefetch::near(row(ROWS).wrapping_add(group * line));
                    if group & mask == 0 {
                        let from = ahead.from.wrapping_add(group * step);
                        prefetch::far(from);
                        if two_lines {
                            prefetch::far(from.wrapping_add(LINE));
                        }
                    }
                }
                add!(group);
            }
            let column_scales = if WIDENED {
                // SAFETY: part < n_parts, and the widened scales hold as many as any chunk has parts.
                unsafe {
                    b.scales
                        .as_ptr()
                        .cast::<[D::Scales; WIDTH]>()
                        .add(part)
                        .read_unaligned()
                }
            } else {
                // SAFETY: the panel's scales, as above, for a part in the chunk.
                unsafe { d.scales(layout, [scales(0), scales(1)], part) }
            };
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
        let totals = self.totals.row(i);
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
