//! Products of bfloat16 in tile registers ([`Tiles`]): the kernel of a level whose unit is a tile.
//!
//! **Blocks.** A block of the result is one tile of rows by the two tiles of a panel's columns: two sums, a tile of rows and
//! one of columns, which is loaded twice. On Intel's CPUs two by two would load less, but what slows tiles most is another
//! program on the same core, and the more so the more registers are in use: 2 x 2 lost 64 % by it and 1 x 2 40 %, of 50 and 45 %
//! of the peak. The last rows, fewer than a tile's, have registers of their own with that many rows, so that both shapes are
//! configured at once; they are zeroed behind each use, as what they hold would count.
//!
//! **The order of work** is that of [`multiply`](super::multiply). A chunk of a panel, 16 KiB, stays in the first-level cache
//! while the rows' tiles pass from the second; each block prefetches its share of the next chunk into the second. Blocks of
//! rows are larger than those of vectors ([`Blocking::OF_TILES`](super::blocks::Blocking)): tiles multiply so fast that reading
//! a weight from the third-level cache is what takes long.
//!
//! **The order of addition** is a property of the level: that of [`Tiles::multiply_add`] for each 32 terms from the first on, whose
//! sums are added one by one, first to last, to a zero. Terms behind the last count as zeros. Neither chunks nor the number
//! of rows enter. The bits differ from other levels'.
//!
//! **Layout.** Rows are packed as for [`Avx512Bf16`](crate::vectors::avx512::Avx512Bf16), so that a block may begin at any
//! row. A panel is brought into the order in which its tiles are loaded:
//!
//! ```text
//! panel    16 words of columns 0..16   16 words of columns 16..32    terms 0..32
//!          16 words of columns 0..16   16 words of columns 16..32    terms 32..64
//!          ..                          (fewer words at the end)
//! ```
//!
//! **int8** has no kernel here. A group of 128 terms has a scale of its own, so that sums would leave the tiles behind every second
//! product: 16 to 22 % of twice bfloat16's peak were measured so, which is no more than bfloat16's tiles reach, and 11 % beside a
//! busy neighbour. To widen weights to bfloat16's tiles would take rows of bfloat16, a second set of blocks, and bits that
//! differ from those of other levels. int8 remains with VNNI: for a few rows, where it halves what is read, nothing
//! is faster.

use std::{cell::Cell, hint::black_box, marker::PhantomData};

use half::bf16;

use super::pack_panel::transposed_columns;
use super::{
    Ahead, Blocking, Chunks, CopyPanels, DotTile, Dots, Finish, FinishPanels, Format, InPlaceTile,
    Kernel, NEXT_PANEL, PackColumns, PackPanel, PackRow, PackRows, PanelPairs, Registers, Total,
    WIDTH,
};
use crate::vectors::amx::Amx;
use crate::vectors::amx_emulated::AmxEmulated;
use crate::vectors::avx512::{Avx512, Avx512Bf16};
use crate::vectors::prefetch::{self, LINE};
use crate::vectors::tiles::{RIGHT, TILE, TILE_ROW, TILES, TileShapes, Tiles};
use crate::vectors::{Instructions, Task};

/// A level with tiles, beside them dot products of vectors, which pack rows.
pub trait TileLevel: Tiles {
    type Dots: Dots<bf16, Vectors = Avx512>;
    /// Products in registers that take some 0.8 ms.
    const PRODUCTS: usize;
    fn dots(self) -> Self::Dots;
}

impl TileLevel for Amx {
    type Dots = Avx512Bf16;
    const PRODUCTS: usize = 1 << 17;
    fn dots(self) -> Avx512Bf16 {
        self.bf16()
    }
}

impl TileLevel for AmxEmulated {
    type Dots = Self;
    const PRODUCTS: usize = 1 << 11;
    fn dots(self) -> Self {
        self
    }
}

/// Columns of a panel: two tiles.
const PANEL: usize = WIDTH * TILE;

/// Bytes from a row of totals to the next.
const TOTALS_ROW: usize = PANEL * size_of::<f32>();

/// The registers of a block. A type, so that each instruction's are known where it is compiled.
trait Block {
    /// The sums of its two tiles.
    const SUMS: [usize; WIDTH];
    /// Its rows.
    const LEFT: usize;
}

/// A block of [`TILE`] rows.
struct Whole;

impl Block for Whole {
    const SUMS: [usize; WIDTH] = [0, 1];
    const LEFT: usize = 4;
}

/// A block of fewer rows.
struct Rest;

impl Block for Rest {
    const SUMS: [usize; WIDTH] = [2, 3];
    const LEFT: usize = 5;
}

/// The shapes of all registers, where blocks have [`TILE`] rows, or `rest`.
fn shapes(rest: usize) -> TileShapes {
    let mut rows = [0; TILES];
    for tile in Whole::SUMS.into_iter().chain([Whole::LEFT, RIGHT]) {
        rows[tile] = TILE as u8;
    }
    for tile in Rest::SUMS.into_iter().chain([Rest::LEFT]) {
        rows[tile] = rest as u8;
    }
    TileShapes::of_rows(rows)
}

thread_local! {
    /// The rows of a [`Rest`] that this thread's tiles are configured for, while they are.
    static CONFIGURED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// While it lives, the thread's tiles have the shapes of blocks. Dropped, it leaves the thread as it was: others may rely on
/// tiles that they configured (candle does so once for each thread), though not on what these held.
struct Configured<T: Tiles> {
    tiles: T,
    before: (Option<usize>, TileShapes),
}

impl<T: Tiles> Configured<T> {
    fn new(tiles: T, rest: usize) -> Self {
        let before = (CONFIGURED.replace(Some(rest)), tiles.shapes());
        // SAFETY: shapes of `of_rows`.
        unsafe { tiles.configure(&shapes(rest)) };
        Self { tiles, before }
    }
}

impl<T: Tiles> Drop for Configured<T> {
    fn drop(&mut self) {
        let (rest, shapes) = self.before;
        CONFIGURED.set(rest);
        if shapes.is_some() {
            // SAFETY: shapes that the thread had before.
            unsafe { self.tiles.configure(&shapes) };
        } else {
            self.tiles.release();
        }
    }
}

/// The kernel of a level.
pub struct TileKernel<T>(pub T);

/// Passes tasks on to the level's vectors and their dot products.
macro_rules! by_vectors {
    ($($task:ident($of:ty);)*) => {
        $(fn $task(&self, task: $of) {
            Kernel::<bf16>::$task(&self.0.dots(), task);
        })*
    };
}

impl<T: TileLevel> Kernel<bf16> for TileKernel<T> {
    fn rows(&self) -> usize {
        TILE
    }

    fn panel(&self) -> usize {
        PANEL
    }

    fn chunks(&self) -> Chunks {
        T::Dots::CHUNKS
    }

    fn transposed_columns(&self) -> usize {
        transposed_columns::<bf16, T::Dots>()
    }

    fn blocking(&self) -> Blocking {
        Blocking::OF_TILES
    }

    fn with_tiles(&self, rows: usize, work: &mut dyn FnMut()) {
        let _configured = Configured::new(self.0, rows % TILE);
        work();
    }

    fn arrange(&self, panel: &mut [u32]) {
        let mut step = [0; TILE * PANEL];
        for words in panel.chunks_mut(step.len()) {
            let step = &mut step[..words.len()];
            step.copy_from_slice(words);
            let (first, second) = words.split_at_mut(words.len() / WIDTH);
            let halves = first
                .chunks_exact_mut(TILE)
                .zip(second.chunks_exact_mut(TILE));
            for (row, (first, second)) in step.chunks_exact(PANEL).zip(halves) {
                first.copy_from_slice(&row[..TILE]);
                second.copy_from_slice(&row[TILE..]);
            }
        }
    }

    fn multiply(&self, tile: DotTile<bf16>) {
        self.0.dots().enter(InTiles(self.0, tile));
    }

    fn multiply_pairs(&self, pairs: PanelPairs<bf16>) {
        self.0.dots().enter(InTiles(self.0, pairs));
    }

    fn multiply_registers(&self, registers: Registers<bf16>) -> usize {
        self.0.dots().enter(InTiles(self.0, registers))
    }

    by_vectors! {
        multiply_in_place(InPlaceTile<f32>);
        finish(Finish<f32>);
        finish_panels(FinishPanels<f32>);
        pack_row(PackRow<bf16>);
        pack_rows(PackRows<bf16>);
        pack_columns(PackColumns<f32>);
        pack_panel(PackPanel<bf16>);
        copy_panels(CopyPanels<f32>);
    }
}

impl<T: TileLevel> TileKernel<T> {
    /// Adds one chunk of a tile to its totals, as [`Kernel::multiply`] does, with a panel that is not arranged.
    pub fn multiply_words(&self, tile: DotTile<bf16>) {
        self.0.dots().enter(InTiles(self.0, Words(tile)));
    }
}

/// A task in tiles.
struct InTiles<T, Of>(T, Of);

/// A tile whose panel is not arranged.
struct Words<'a>(DotTile<'a, bf16>);

impl<T: TileLevel> Task<T::Dots> for InTiles<T, Words<'_>> {
    #[inline(always)]
    fn compute(self, _: T::Dots) {
        let Self(tiles, Words(tile)) = self;
        match tile.rows {
            TILE => InTiles(tiles, tile).in_block::<Whole>(Order::Words),
            _ => InTiles(tiles, tile).in_block::<Rest>(Order::Words),
        }
    }
}

impl<T: TileLevel> Task<T::Dots> for InTiles<T, DotTile<'_, bf16>> {
    #[inline(always)]
    fn compute(self, _: T::Dots) {
        match self.1.rows {
            TILE => self.in_block::<Whole>(Order::Tiles),
            _ => self.in_block::<Rest>(Order::Tiles),
        }
    }
}

impl<T: TileLevel> InTiles<T, DotTile<'_, bf16>> {
    #[inline(always)]
    fn in_block<B: Block>(self, order: Order) {
        let Self(tiles, tile) = self;
        let words = tile.depth.div_ceil(bf16::GROUP);
        let steps = words.div_ceil(TILE).max(1);
        let next = tile.b.as_ptr().wrapping_add(words * PANEL).cast::<u8>();
        // A word of a panel is two cache lines.
        let (ahead, lines) = match tile.ahead {
            Ahead::Nothing => (next, 0),
            Ahead::NextChunk => (next, 2 * TILE),
            Ahead::ShareOfNextChunk { tile, n_tiles } => {
                let lines = (2 * words).div_ceil(n_tiles).div_ceil(steps);
                (next.wrapping_add(tile * steps * lines * LINE), lines)
            }
        };
        let sums = Sums::<T, B>::begin(tiles, tile.rows, tile.total, tile.totals);
        sums.add(tile.a, tile.b, words, order, (ahead, lines));
        sums.end(tile.totals);
    }
}

/// One panel after the other: the sums of a tile depend on each other over the latency of one product of many, so that a
/// second stream would hide nothing. What takes long is reading.
impl<T: TileLevel> Task<T::Dots> for InTiles<T, PanelPairs<'_, bf16>> {
    #[inline(always)]
    fn compute(self, _: T::Dots) {
        let Self(tiles, pairs) = self;
        let panel_words = bf16::column_words(pairs.depth) * PANEL;
        let totals = pairs.totals.chunks_exact_mut(pairs.rows * PANEL);
        for (panel, totals) in totals.enumerate() {
            let panel = &pairs.b[panel * panel_words..][..panel_words];
            let sums = Sums::<T, Rest>::begin(tiles, pairs.rows, Total::New, totals);
            for (chunk, b) in panel.chunks(bf16::CHUNK_WORDS * PANEL).enumerate() {
                let a = &pairs.a[chunk * pairs.a_stride..];
                let words = b.len() / PANEL;
                sums.add(a, b, words, Order::Tiles, (b.as_ptr().cast(), 0));
            }
            sums.end(totals);
        }
        let end = pairs.b.as_ptr().wrapping_add(pairs.b.len());
        prefetch::bytes(end, NEXT_PANEL);
    }
}

/// How the words of a step lie in a panel.
#[derive(Clone, Copy)]
enum Order {
    /// One tile behind the other: what [`Kernel::arrange`] makes.
    Tiles,
    /// Each word of all columns before the next.
    Words,
}

/// Where the words of a step lie.
struct Places {
    /// Words from one word of a column to its next.
    word: usize,
    /// Words from a panel's first half of columns to its second.
    half: usize,
}

impl Order {
    /// In a step of so many words.
    #[inline(always)]
    fn places(self, words: usize) -> Places {
        match self {
            Self::Tiles => Places {
                word: TILE,
                half: words * TILE,
            },
            Self::Words => Places {
                word: PANEL,
                half: TILE,
            },
        }
    }
}

/// The sums of a block, in registers.
struct Sums<T, B> {
    tiles: T,
    rows: usize,
    block: PhantomData<B>,
}

impl<T: TileLevel, B: Block> Sums<T, B> {
    /// The totals, `[rows, PANEL]`, or zeros.
    ///
    /// # Panics
    /// Unless the thread's tiles are configured for blocks of so many rows.
    #[inline(always)]
    fn begin(tiles: T, rows: usize, total: Total, totals: &[f32]) -> Self {
        let rest = CONFIGURED.get().expect("tiles that are not configured");
        let configured = if B::LEFT == Whole::LEFT { TILE } else { rest };
        assert_eq!(rows, configured, "tiles configured for other rows");
        assert!(totals.len() >= rows * PANEL);
        // SAFETY: the assertions above.
        unsafe {
            match total {
                Total::New => {
                    tiles.zero(B::SUMS[0]);
                    tiles.zero(B::SUMS[1]);
                }
                Total::Running => {
                    let totals = totals.as_ptr().cast::<u32>();
                    tiles.load(B::SUMS[0], totals, TOTALS_ROW);
                    tiles.load(B::SUMS[1], totals.add(TILE), TOTALS_ROW);
                }
            }
        }
        Self {
            tiles,
            rows,
            block: PhantomData,
        }
    }

    /// Stores the sums to totals.
    #[inline(always)]
    fn end(self, totals: &mut [f32]) {
        let (tiles, totals) = (self.tiles, &mut totals[..self.rows * PANEL]);
        let totals = totals.as_mut_ptr();
        // SAFETY: sums exist where their tiles are configured; as many rows of totals.
        unsafe {
            tiles.store(B::SUMS[0], totals, TOTALS_ROW);
            tiles.store(B::SUMS[1], totals.add(TILE), TOTALS_ROW);
            if B::LEFT == Rest::LEFT {
                tiles.zero(B::SUMS[0]);
                tiles.zero(B::SUMS[1]);
                tiles.zero(B::LEFT);
            }
        }
    }

    /// Adds the products of so many words of rows and of a panel. Each step of a tile's words prefetches as many `lines`
    /// from `ahead` on.
    #[inline(always)]
    fn add(
        &self,
        a: &[u32],
        b: &[u32],
        words: usize,
        order: Order,
        (ahead, lines): (*const u8, usize),
    ) {
        let row_words = T::Dots::ROW_WORDS;
        let (steps, rest) = (words / TILE, words % TILE);
        assert!(words <= row_words && a.len() >= (self.rows - 1) * row_words + words);
        assert!(b.len() >= words * PANEL);
        for step in 0..steps {
            let a = a.as_ptr().wrapping_add(step * TILE);
            let b = b.as_ptr().wrapping_add(step * TILE * PANEL);
            // SAFETY: by the assertions above there are as many words of as many rows, and the words of both tiles.
            unsafe { self.step(a, row_words * size_of::<u32>(), b, order) };
            for line in step * lines..(step + 1) * lines {
                prefetch::far(ahead.wrapping_add(line * LINE));
            }
        }
        if rest > 0 {
            // Zeros behind the last words: what lies there is another row, or nothing.
            let (a, b) = (&a[steps * TILE..], &b[steps * TILE * PANEL..]);
            let (mut rows, mut columns) = ([0; TILE * TILE], [0; TILE * PANEL]);
            for (i, to) in rows.chunks_exact_mut(TILE).enumerate().take(self.rows) {
                to[..rest].copy_from_slice(&a[i * row_words..][..rest]);
            }
            let (from, to) = (order.places(rest), Order::Tiles.places(TILE));
            for half in 0..WIDTH {
                for word in 0..rest {
                    let columns = &mut columns[half * to.half + word * to.word..][..TILE];
                    columns.copy_from_slice(&b[half * from.half + word * from.word..][..TILE]);
                }
            }
            // SAFETY: a whole tile of rows, and two of columns.
            unsafe { self.step(rows.as_ptr(), TILE_ROW, columns.as_ptr(), Order::Tiles) };
        }
    }

    /// Adds the products of a tile of rows, `stride` bytes apart, and of two tiles of columns.
    ///
    /// # Safety
    /// A tile of so many rows can be read at `a`, and two whole ones at `b`.
    #[inline(always)]
    unsafe fn step(&self, a: *const u32, stride: usize, b: *const u32, order: Order) {
        let tiles = self.tiles;
        let Places { word, half } = order.places(TILE);
        let b_stride = word * size_of::<u32>();
        // SAFETY: the caller's promise; sums exist where their tiles are configured.
        unsafe {
            tiles.load(B::LEFT, a, stride);
            tiles.load(RIGHT, b, b_stride);
            tiles.multiply_add(B::SUMS[0], B::LEFT);
            tiles.load(RIGHT, b.add(half), b_stride);
            tiles.multiply_add(B::SUMS[1], B::LEFT);
        }
    }
}

impl<T: TileLevel> Task<T::Dots, usize> for InTiles<T, Registers<bf16>> {
    #[inline(always)]
    fn compute(self, _: T::Dots) -> usize {
        let tiles = self.0;
        // All four sums are whole tiles here.
        let _configured = Configured::new(tiles, TILE);
        for _ in 0..T::PRODUCTS / 4 {
            // SAFETY: the tiles are configured, with as many rows each.
            unsafe {
                tiles.multiply_add(Whole::SUMS[0], Whole::LEFT);
                tiles.multiply_add(Whole::SUMS[1], Whole::LEFT);
                tiles.multiply_add(Rest::SUMS[0], Whole::LEFT);
                tiles.multiply_add(Rest::SUMS[1], Whole::LEFT);
            }
        }
        let mut sums = [0.0; TILE * TILE];
        // SAFETY: the tile is configured, and there is room for it.
        unsafe { tiles.store(Whole::SUMS[0], sums.as_mut_ptr(), TILE_ROW) };
        black_box(sums);
        T::PRODUCTS * 2 * TILE * TILE * TILE * bf16::GROUP
    }
}
