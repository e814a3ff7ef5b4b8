//! A task's rows times some panels: the loops over chunks and tiles, and the epilogue after the last chunk.

use std::ops::Range;

use bytemuck::cast_slice;

use super::{
    Ahead, ApplyEpilogue, Columns, DotTile, Format, InPlaceTile, NEXT_PANEL, PackColumns,
    PackedRows, Product, Results, TaskRows, Total, View, in_place, product::PanelSums,
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
            let rows = a.chunk(0, part.rows.start);
            self.whole_panel(n_rows, rows, a.chunk_words(), b.chunk(panel, 0), totals);
            return finish(0..n_rows, totals);
        }
        for chunk in 0..n_chunks {
            let terms = chunk * F::CHUNK..depth.min((chunk + 1) * F::CHUNK);
            let is_last = chunk + 1 == n_chunks;
            let total = Total::of_chunk(chunk);
            let b = match self.b {
                Columns::Packed(b) => b.chunk(panel, chunk),
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
                    cast_slice(packing)
                }
            };
            for tile in 0..n_tiles {
                let rows = blocking.part(n_rows, n_tiles, tile);
                let totals = &mut totals[rows.start * width..rows.end * width];
                if is_last {
                    results.prefetch(rows.clone());
                }
                kernel.multiply(DotTile {
                    rows: rows.len(),
                    depth: terms.len(),
                    a: a.chunk(chunk, part.rows.start + rows.start),
                    b,
                    layout: self.b.layout(),
                    ahead: match self.b {
                        Columns::Packed(_) => Ahead::ShareOfNextChunk { tile, n_tiles },
                        Columns::InPlace(_) => Ahead::Nothing,
                    },
                    totals,
                    total,
                });
                if is_last {
                    finish(rows, totals);
                }
            }
        }
    }

    /// Computes a panel's totals, if only one row tile uses it, so that it streams in from memory.
    ///
    /// The panel is read from end to end, and the next panel follows it directly. This is a single sequential
    /// stream, which the hardware prefetcher recognizes. The rows are given as their number, their packed
    /// words, and the stride between chunks in words.
    pub(crate) fn whole_panel(
        &self,
        rows: usize,
        a: &[F::Word],
        a_stride: usize,
        b: &[F::Word],
        totals: &mut [F::Element],
    ) {
        let ((depth, _), layout) = (self.b.shape(), self.b.layout());
        for chunk in 0..depth.div_ceil(F::CHUNK).max(1) {
            self.kernel.multiply(DotTile {
                rows,
                depth: (depth - chunk * F::CHUNK).min(F::CHUNK),
                a: &a[chunk * a_stride..],
                b: &b[chunk * F::chunk_words(layout, F::CHUNK) * self.kernel.panel()..],
                layout,
                ahead: Ahead::NextChunk,
                totals,
                total: Total::of_chunk(chunk),
            });
        }
        let end = F::column_words(layout, depth) * self.kernel.panel();
        prefetch::bytes(b.as_ptr().wrapping_add(end), NEXT_PANEL);
    }
}

/// Returns whether reading a panel in place is faster than packing it: for few rows, a whole panel, and columns
/// that are contiguous in memory.
fn reads_in_place<T: Real>(rows: usize, b: View<T>, columns: &Range<usize>, width: usize) -> bool {
    rows <= in_place::MAX_ROWS && columns.len() == width && b.transposed().has_whole_rows()
}
