//! A task's rows times some panels: the loops over chunks and tiles, and the epilogue after the last chunk.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};

use super::{
    Ahead, ApplyEpilogue, Columns, DotTiles, Form, Format, InPlaceTile, Kernel, NEXT_PANEL,
    PackColumns, PackedRows, PanelChunk, Product, Results, TaskRows, Total, Totals, View, Widen,
    in_place, product::PanelSums,
};
use crate::vectors::{Real, prefetch};

impl<F: Format> Product<'_, F> {
    /// Computes and writes one panel in a task's results.
    pub(crate) fn panel(
        &self,
        part: &TaskRows,
        panel: usize,
        a: PackedRows<F::Word>,
        sums: &mut PanelSums<F::Element>,
        results: &Results<F::Element>,
    ) {
        let (depth, _) = self.b.shape();
        let (kernel, width) = (self.kernel, self.kernel.panel());
        let blocking = kernel.blocking();
        let columns = &results.columns;
        let n_rows = part.rows.len();
        let n_chunks = depth.div_ceil(F::CHUNK).max(1);
        let n_tiles = n_rows.div_ceil(kernel.rows());
        let PanelSums {
            totals,
            columns: packing,
        } = sums;
        let totals = &mut totals[..n_rows * width];
        // Fewer rows take other ways below. Tile registers write contiguous rows.
        let by_tiles = F::PLAIN && n_tiles > 1 && n_rows > in_place::MAX_ROWS;
        let is_direct = by_tiles && results.are_totals(n_rows, n_chunks, width);
        // SAFETY: among all tasks and panels, only this one writes these columns of the task's rows.
        let mut in_result = is_direct.then(|| unsafe { results.as_totals(n_rows) });
        let before = self.before();
        if before == Total::Running && in_result.is_none() {
            results.read(totals, width);
        }
        let finish = |rows: Range<usize>, sums: &mut [F::Element]| {
            kernel.finish(ApplyEpilogue {
                results,
                rows,
                sums,
            });
        };
        if let Columns::Packed(b) = self.b
            && n_tiles == 1
        {
            let a = (a.chunk(0, part.rows.start), a.chunk_words());
            self.whole_panel(n_rows, a, b.chunk(panel, 0), totals, before);
            return finish(0..n_rows, totals);
        }
        for chunk in 0..n_chunks {
            let terms = chunk * F::CHUNK..depth.min((chunk + 1) * F::CHUNK);
            let is_last = chunk + 1 == n_chunks;
            let total = before.of_chunk(chunk);
            let (b, ahead) = match self.b {
                Columns::Packed(b) => {
                    let (packed, ahead) = self.packed_chunk(b.chunk(panel, chunk), terms.len());
                    let chunk = Widen {
                        scales: packed.scales,
                        values: packed.values,
                        depth: terms.len(),
                        layout: b.layout(),
                        to: cast_slice_mut(packing),
                    };
                    (for_tiles(kernel, n_tiles, chunk), ahead)
                }
                Columns::InPlace(b) if reads_in_place(n_rows, b, columns, width) => {
                    kernel.multiply_in_place(InPlaceTile {
                        rows: n_rows,
                        a: cast_slice(a.chunk(chunk, 0)),
                        weight: b.transposed(),
                        terms,
                        columns: columns.clone(),
                        totals,
                        total,
                    });
                    if is_last {
                        finish(0..n_rows, totals);
                    }
                    continue;
                }
                Columns::InPlace(b) => {
                    kernel.pack_columns(PackColumns {
                        b,
                        columns: columns.start..columns.start + width,
                        rows: terms.clone(),
                        panel: packing,
                    });
                    (PanelChunk::packed(&[], cast_slice(packing)), Ahead::NOTHING)
                }
            };
            // Tile by tile where the epilogue follows while a tile's totals are in the cache.
            let finishes = is_last && in_result.is_none();
            let n_parts = if finishes { n_tiles } else { 1 };
            for i in 0..n_parts {
                let rows = blocking.part(n_rows, n_parts, i);
                if finishes {
                    results.prefetch(rows.clone());
                }
                let of_part = &mut totals[rows.start * width..rows.end * width];
                kernel.multiply(DotTiles {
                    rows: rows.len(),
                    depth: terms.len(),
                    a: a.chunk(chunk, part.rows.start + rows.start),
                    b,
                    layout: self.b.layout(),
                    ahead: ahead.share(i, n_parts),
                    totals: match &mut in_result {
                        Some(totals) => totals.part(rows.clone()),
                        None => Totals::contiguous(&mut *of_part, width),
                    },
                    total,
                });
                if finishes {
                    finish(rows, of_part);
                }
            }
        }
    }

    /// Returns the packed chunk with depth `depth` that `b` starts with, and the memory after it.
    fn packed_chunk<'b>(&self, b: &'b [F::Word], depth: usize) -> (PanelChunk<'b, F::Word>, Ahead) {
        let (layout, width) = (self.b.layout(), self.kernel.panel());
        let chunk = &b[..F::chunk_words(layout, depth) * width];
        let (scales, values) = chunk.split_at(F::scale_words(layout, depth) * width);
        (PanelChunk::packed(scales, values), Ahead::next_chunk(chunk))
    }

    /// Computes a panel's totals, if only one row tile uses it, so that it streams in from memory.
    ///
    /// The panel is read from end to end, and the next panel follows it directly. This is a single sequential
    /// stream, which the hardware prefetcher recognizes. The rows are given as their number, their packed
    /// words, and the stride between chunks in words.
    pub(crate) fn whole_panel(
        &self,
        rows: usize,
        (a, a_stride): (&[F::Word], usize),
        b: &[F::Word],
        totals: &mut [F::Element],
        before: Total,
    ) {
        let ((depth, _), layout) = (self.b.shape(), self.b.layout());
        for chunk in 0..depth.div_ceil(F::CHUNK).max(1) {
            let depth = (depth - chunk * F::CHUNK).min(F::CHUNK);
            let words = &b[chunk * F::chunk_words(layout, F::CHUNK) * self.kernel.panel()..];
            let (b, ahead) = self.packed_chunk(words, depth);
            self.kernel.multiply(DotTiles {
                rows,
                depth,
                a: &a[chunk * a_stride..],
                b,
                layout,
                ahead,
                totals: Totals::contiguous(&mut *totals, self.kernel.panel()),
                total: before.of_chunk(chunk),
            });
        }
        let end = F::column_words(layout, depth) * self.kernel.panel();
        prefetch::bytes(b.as_ptr().wrapping_add(end), NEXT_PANEL);
    }
}

/// Returns a packed chunk as `n_tiles` tiles read it: widened, if that is faster than widening it in each tile.
pub(crate) fn for_tiles<'a, F: Format>(
    kernel: &dyn Kernel<F>,
    n_tiles: usize,
    chunk: Widen<'a, F>,
) -> PanelChunk<'a, F::Word> {
    let words = kernel.widened();
    if n_tiles < words.fewest_tiles {
        return PanelChunk::packed(chunk.scales, chunk.values);
    }
    let to = chunk.to;
    kernel.widen(Widen {
        to: &mut *to,
        ..chunk
    });
    let (scales, values) = to.split_at(words.scales);
    PanelChunk {
        form: Form::Widened,
        scales,
        values,
    }
}

/// Returns whether reading a panel in place is faster than packing it: for few rows, a whole panel, and columns
/// that are contiguous in memory.
fn reads_in_place<T: Real>(rows: usize, b: View<T>, columns: &Range<usize>, width: usize) -> bool {
    rows <= in_place::MAX_ROWS && columns.len() == width && b.transposed().has_whole_rows()
}
