//! The kernel for tile registers, for bfloat16.

use std::hint::black_box;

use bytemuck::cast_slice_mut;
use half::bf16;

use super::{
    Block, Configured, Order, PANEL, Rest, Sums, TileFormat, TileKernel, TileLevel, Whole,
};
use crate::products::pack_panel::transposed_columns;
use crate::products::{
    Ahead, ApplyEpilogue, ApplyEpilogueToPanels, Blocking, Chunks, DotTiles, Dots, Format,
    InPlaceTile, Kernel, NEXT_PANEL, PackByRows, PackColumns, PackPanel, PackRow, PackRows,
    PanelPairs, Registers, Total, UnpackColumn, WIDTH, Widen, WidenedWords,
};
use crate::vectors::prefetch::{self, LINE};
use crate::vectors::tiles::{RIGHT, TILE, TILE_ROW};
use crate::vectors::{Instructions, Task};

/// Delegates tasks to the vectors' dot products.
macro_rules! by_vectors {
    ($dots:ident $format:ty: $($task:ident($of:ty);)*) => {
        $(fn $task(&self, task: $of) {
            Kernel::<$format>::$task(&self.0.$dots(), task);
        })*
    };
}
pub(super) use by_vectors;

impl<T: TileLevel> Kernel<bf16> for TileKernel<T> {
    fn rows(&self) -> usize {
        TILE
    }

    fn panel(&self) -> usize {
        PANEL
    }

    fn chunks(&self, (): ()) -> Chunks {
        <T::Dots as Dots<bf16>>::chunks(())
    }

    fn transposed_columns(&self) -> usize {
        transposed_columns::<bf16, T::Dots>()
    }

    fn widened(&self) -> WidenedWords {
        WidenedWords::NONE
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

    fn unpack_column(&self, unpack: UnpackColumn<bf16>) {
        let (half, column) = (unpack.column / TILE, unpack.column % TILE);
        let steps = unpack.panel.chunks(TILE * PANEL);
        for (step, words) in steps.zip(unpack.words.chunks_mut(TILE)) {
            let rows = step[half * step.len() / WIDTH..].chunks_exact(TILE);
            for (row, word) in rows.zip(words) {
                *word = row[column];
            }
        }
    }

    fn multiply(&self, tile: DotTiles<bf16>) {
        self.0.dots().enter(InTiles(self.0, tile));
    }

    fn multiply_pairs(&self, pairs: PanelPairs<bf16>) {
        self.0.dots().enter(InTiles(self.0, pairs));
    }

    fn multiply_registers(&self, registers: Registers<bf16>) -> usize {
        self.0.dots().enter(InTiles(self.0, registers))
    }

    by_vectors! {
        dots bf16:
        widen(Widen<bf16>);
        multiply_in_place(InPlaceTile<f32>);
        finish(ApplyEpilogue<f32>);
        apply_epilogue_to_panels(ApplyEpilogueToPanels<f32>);
        pack_row(PackRow<bf16>);
        pack_rows(PackRows<bf16>);
        pack_columns(PackColumns<f32>);
        pack_panel(PackPanel<bf16>);
        pack_by_rows(PackByRows<bf16>);
    }
}

impl<T: TileLevel> TileKernel<T> {
    /// Adds one chunk in a tile to its totals, as [`Kernel::multiply`] does, for a panel without
    /// [`Kernel::arrange`].
    pub fn multiply_words(&self, tile: DotTiles<bf16>) {
        self.0.dots().enter(InTiles(self.0, Words(tile)));
    }
}

/// A task that is computed in tiles.
pub struct InTiles<T, Of>(pub T, pub Of);

/// A tile whose panel is not rearranged.
struct Words<'a>(DotTiles<'a, bf16>);

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

impl<T: TileLevel> Task<T::Dots> for InTiles<T, DotTiles<'_, bf16>> {
    #[inline(always)]
    fn compute(self, _: T::Dots) {
        let Self(tiles, mut all) = self;
        let n = all.rows.div_ceil(TILE);
        for i in 0..n {
            let tile = all.tile(i, n, T::Dots::ROW_WORDS, Blocking::OF_TILES);
            match tile.rows {
                TILE => InTiles(tiles, tile).in_block::<Whole>(Order::Tiles),
                _ => InTiles(tiles, tile).in_block::<Rest>(Order::Tiles),
            }
        }
    }
}

impl<T: TileLevel> InTiles<T, DotTiles<'_, bf16>> {
    #[inline(always)]
    fn in_block<B: Block>(self, order: Order) {
        let Self(tiles, tile) = self;
        let words = tile.depth.div_ceil(bf16::GROUP);
        let ahead = lines_ahead(tile.ahead, words);
        let rows = (tile.rows, T::Dots::ROW_WORDS);
        let totals = cast_slice_mut(tile.totals.into_slice());
        let before = match tile.total {
            Total::New => None,
            Total::Running => Some(&*totals),
        };
        let sums = Sums::<T, B, bf16>::begin(tiles, rows, before);
        sums.add(tile.a, tile.b.values, words, order, ahead);
        sums.end(totals);
    }
}

/// Returns the first cache line that a tile with `words` word rows prefetches, and the line count per step.
pub fn lines_ahead(ahead: Ahead, words: usize) -> (*const u8, usize) {
    let steps = words.div_ceil(TILE).max(1);
    (ahead.from, ahead.bytes.div_ceil(LINE).div_ceil(steps))
}

/// A panel after the other. A tile's sums depend on each other over the latency of one product out of many, so
/// that a second stream would hide nothing. The bottleneck is reading.
impl<T: TileLevel> Task<T::Dots> for InTiles<T, PanelPairs<'_, bf16>> {
    #[inline(always)]
    fn compute(self, _: T::Dots) {
        let Self(tiles, pairs) = self;
        let panel_words = bf16::column_words((), pairs.depth) * PANEL;
        let totals = pairs.totals.chunks_exact_mut(pairs.rows * PANEL);
        for (panel, totals) in totals.enumerate() {
            let panel = &pairs.b[panel * panel_words..][..panel_words];
            let sums = Sums::<T, Rest, bf16>::begin(tiles, (pairs.rows, T::Dots::ROW_WORDS), None);
            for (chunk, b) in panel
                .chunks(bf16::chunk_words((), bf16::CHUNK) * PANEL)
                .enumerate()
            {
                let a = &pairs.a[chunk * pairs.a_stride..];
                let words = b.len() / PANEL;
                sums.add(a, b, words, Order::Tiles, (b.as_ptr().cast(), 0));
            }
            sums.end(cast_slice_mut(totals));
        }
        let end = pairs.b.as_ptr().wrapping_add(pairs.b.len());
        prefetch::bytes(end, NEXT_PANEL);
    }
}

impl<T: TileLevel, D, F: TileFormat + Format> Task<D, usize> for InTiles<T, Registers<F>> {
    #[inline(always)]
    fn compute(self, _: D) -> usize {
        let tiles = self.0;
        // All four sums are whole tiles here. The operands are ones, not zeros, because tile speed beside a busy
        // hyperthread depends on the data, and a real product has nonzero values.
        let _configured = Configured::new(tiles, TILE);
        let ones = [0x3f80_3f80u32; TILE * TILE];
        for tile in [Whole::LEFT, RIGHT] {
            // SAFETY: the tiles are configured, and as large as the array.
            unsafe { tiles.load(tile, ones.as_ptr(), TILE_ROW) };
        }
        for _ in 0..T::PRODUCTS / 4 {
            // SAFETY: the tiles are configured, with as many rows each.
            unsafe {
                F::multiply_add(tiles, Whole::SUMS[0], Whole::LEFT);
                F::multiply_add(tiles, Whole::SUMS[1], Whole::LEFT);
                F::multiply_add(tiles, Rest::SUMS[0], Whole::LEFT);
                F::multiply_add(tiles, Rest::SUMS[1], Whole::LEFT);
            }
        }
        let mut sums = [0; TILE * TILE];
        // SAFETY: the tile is configured, and there is room for it.
        unsafe { tiles.store(Whole::SUMS[0], sums.as_mut_ptr(), TILE_ROW) };
        black_box(sums);
        T::PRODUCTS * 2 * TILE * TILE * TILE * F::GROUP
    }
}
