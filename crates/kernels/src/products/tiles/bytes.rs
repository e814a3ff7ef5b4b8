//! int8 products in tiles: tiles compute a chunk's integer sums, and vectors scale them as in every int8 kernel.

use std::arch::x86_64::{_mm512_add_epi32, _mm512_loadu_si512};

use super::kernel::{InTiles, by_vectors, lines_ahead};
use super::{Block, Configured, Order, PANEL, Rest, Sums, TileKernel, TileLevel, Whole};
use crate::products::pack_panel::transposed_columns;
use crate::products::{
    ApplyEpilogue, ApplyEpilogueToPanels, Blocking, Chunks, DotTiles, Dots, Format, InPlaceTile,
    Kernel, PackByRows, PackColumns, PackPanel, PackRow, PackRows, PanelChunk, PanelPairs,
    Registers, Total, UnpackColumn, WIDTH, Widen, WidenedWords, formats::int8::QUAD_SCALE_WORDS,
};
use crate::vectors::tiles::TILE;
use crate::vectors::{Instructions, Task, Vectors};

/// The maximum row count that is left to vectors, because reading the weight is the bottleneck.
const FEW_ROWS: usize = 8;

impl<T: TileLevel> Kernel<i8> for TileKernel<T> {
    fn rows(&self) -> usize {
        TILE
    }

    fn panel(&self) -> usize {
        PANEL
    }

    fn chunks(&self, (): ()) -> Chunks {
        <T::ByteDots as Dots<i8>>::chunks(())
    }

    fn transposed_columns(&self) -> usize {
        transposed_columns::<i8, T::ByteDots>()
    }

    fn widened(&self) -> WidenedWords {
        WidenedWords::NONE
    }

    fn blocking(&self) -> Blocking {
        Blocking::OF_TILES
    }

    fn with_tiles(&self, rows: usize, work: &mut dyn FnMut()) {
        let _configured = (rows > FEW_ROWS).then(|| Configured::new(self.0, rows % TILE));
        work();
    }

    fn multiply(&self, tile: DotTiles<i8>) {
        match tile.rows {
            ..=FEW_ROWS => Kernel::<i8>::multiply(&self.0.byte_dots(), tile),
            _ => self.0.byte_dots().enter(InTiles(self.0, tile)),
        }
    }

    fn multiply_registers(&self, registers: Registers<i8>) -> usize {
        self.0.byte_dots().enter(InTiles(self.0, registers))
    }

    by_vectors! {
        byte_dots i8:
        widen(Widen<i8>);
        multiply_pairs(PanelPairs<i8>);
        multiply_in_place(InPlaceTile<f32>);
        finish(ApplyEpilogue<f32>);
        apply_epilogue_to_panels(ApplyEpilogueToPanels<f32>);
        pack_row(PackRow<i8>);
        pack_rows(PackRows<i8>);
        pack_columns(PackColumns<f32>);
        pack_panel(PackPanel<i8>);
        unpack_column(UnpackColumn<i8>);
        pack_by_rows(PackByRows<i8>);
    }
}

impl<T: TileLevel> Task<T::ByteDots> for InTiles<T, DotTiles<'_, i8>> {
    #[inline(always)]
    fn compute(self, dots: T::ByteDots) {
        let Self(tiles, mut all) = self;
        let n = all.rows.div_ceil(TILE);
        for i in 0..n {
            let tile = all.tile(i, n, T::ByteDots::ROW_WORDS, Blocking::OF_TILES);
            match tile.rows {
                TILE => InTiles(tiles, tile).in_block::<Whole>(dots),
                _ => InTiles(tiles, tile).in_block::<Rest>(dots),
            }
        }
    }
}

impl<T: TileLevel> InTiles<T, DotTiles<'_, i8>> {
    #[inline(always)]
    fn in_block<B: Block>(self, d: T::ByteDots) {
        let Self(tiles, tile) = self;
        let (n_rows, row_words) = (tile.rows, T::ByteDots::ROW_WORDS);
        let words = tile.depth.div_ceil(i8::GROUP);
        // A column's scales are one word.
        let PanelChunk {
            scales, values: b, ..
        } = tile.b;
        let ahead = lines_ahead(tile.ahead, words);
        let rows = &tile.a[..n_rows * row_words];
        let mut integers = [0u32; TILE * PANEL];
        let sums = Sums::<T, B, i8>::begin(tiles, (n_rows, row_words), None);
        sums.add(&rows[QUAD_SCALE_WORDS..], b, words, Order::Words, ahead);
        sums.end(&mut integers);
        let v = d.vectors();
        let halves = [0, TILE].map(|start| scales[start..][..TILE].as_ptr());
        // SAFETY: both vectors of the panel's scales.
        let column_scales = unsafe { d.scales((), halves, 0) };
        let rows = rows.chunks_exact(row_words);
        let totals = tile.totals.into_slice().chunks_exact_mut(PANEL);
        for ((row, integers), totals) in rows.zip(integers.chunks_exact(PANEL)).zip(totals) {
            for j in 0..WIDTH {
                let (integers, totals) = (
                    &integers[j * TILE..][..TILE],
                    &mut totals[j * TILE..][..TILE],
                );
                let row = row.as_ptr();
                // SAFETY: a packed row, and sum, scale and total vectors; the token proves AVX-512.
                unsafe {
                    let sum = _mm512_loadu_si512(integers.as_ptr().cast());
                    let sum = _mm512_add_epi32(sum, d.start(row, halves[j]));
                    let sum = d.to_floats(sum, row, 0, column_scales[j]);
                    let total = match tile.total {
                        Total::New => sum,
                        Total::Running => Vectors::<f32>::add(v, v.load(totals.as_ptr()), sum),
                    };
                    v.store(total, totals.as_mut_ptr());
                }
            }
        }
    }
}
