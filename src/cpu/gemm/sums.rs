//! One part's rows times some panels of columns: the loops over chunks and tiles, and the epilogue behind the
//! last chunk.

use std::ops::Range;

use bytemuck::cast_slice;

use super::{
    super::{
        Real,
        arch::Vectors,
        dot_tile::{Ahead, DotTile, WholePanel},
        epilogue::{Finish, Place, PrefetchResults, Results},
        format::{Dots, Format},
        gemv::{self, InPlaceTile},
        pack::PackColumns,
        rows::PackedRows,
        tile::Total,
        view::View,
    },
    product::{Columns, Part, Product, Sums},
};

impl<F: Format> Product<'_, F> {
    /// What the results of one panel of a part are made of, and where they go.
    pub(super) fn results<'b, D: Dots<F>>(
        &'b self,
        part: &Part,
        panel: usize,
        place: &'b Place<'b, F::Number>,
    ) -> Results<'b, F::Number> {
        let (_, n_columns) = self.b.shape();
        let halves = self.b.halves();
        let per_panel = halves.columns_per_panel::<F, D>();
        Results {
            epilogue: self.epilogue,
            halves,
            first_row: part.first_row,
            columns: panel * per_panel..n_columns.min((panel + 1) * per_panel),
            n_columns,
            place,
        }
    }

    /// Computes and writes the results of one panel of a part.
    pub(super) fn panel<D: Dots<F>>(
        &self,
        d: D,
        part: &Part,
        panel: usize,
        a: PackedRows<F::Word>,
        sums: &mut Sums<F::Number>,
        results: &Results<F::Number>,
    ) {
        let (depth, _) = self.b.shape();
        let columns = &results.columns;
        let n_chunks = depth.div_ceil(F::CHUNK).max(1);
        let n_tiles = part.rows.len().div_ceil(D::ROWS);
        let Sums {
            totals,
            columns: packing,
        } = sums;
        let totals = &mut totals[..part.rows.len() * D::PANEL];
        let finish = |rows: Range<usize>, sums: &mut [F::Number]| {
            d.vectors().run(Finish {
                results,
                rows,
                sums,
            });
        };
        if let Columns::Packed(b) = self.b
            && n_tiles == 1
        {
            d.run(WholePanel {
                rows: part.rows.len(),
                depth,
                a: a.chunk(0, part.rows.start),
                a_stride: a.chunk_words(),
                b: b.panel::<D>(panel),
                totals,
            });
            return finish(0..part.rows.len(), totals);
        }
        for chunk in 0..n_chunks {
            let terms = chunk * F::CHUNK..depth.min((chunk + 1) * F::CHUNK);
            let is_last = chunk + 1 == n_chunks;
            let total = if chunk == 0 {
                Total::New
            } else {
                Total::Running
            };
            let b = match self.b {
                Columns::Packed(b) => b.chunk::<D>(panel, chunk),
                Columns::InPlace(b) if reads_in_place(part.rows.len(), b, columns, D::PANEL) => {
                    d.vectors().run(InPlaceTile {
                        rows: part.rows.len(),
                        a: cast_slice(a.chunk(chunk, 0)),
                        weight: b.transposed(),
                        terms,
                        columns: columns.clone(),
                        totals,
                        total,
                    });
                    if is_last {
                        finish(0..part.rows.len(), totals);
                    }
                    continue;
                }
                Columns::InPlace(b) => {
                    d.vectors().run(PackColumns {
                        b,
                        columns: columns.start..columns.start + D::PANEL,
                        rows: terms.clone(),
                        panel: packing,
                    });
                    cast_slice(packing)
                }
            };
            for tile in 0..n_tiles {
                let rows = super::part(part.rows.len(), n_tiles, tile);
                let totals = &mut totals[rows.start * D::PANEL..rows.end * D::PANEL];
                if is_last {
                    d.vectors().run(PrefetchResults {
                        results,
                        rows: rows.clone(),
                    });
                }
                d.run(DotTile {
                    rows: rows.len(),
                    depth: terms.len(),
                    a: a.chunk(chunk, part.rows.start + rows.start),
                    b,
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
}

/// Whether it is faster to read a panel where it lies than to pack it: few rows, a whole panel, and columns
/// whose terms are contiguous.
fn reads_in_place<T: Real>(rows: usize, b: View<T>, columns: &Range<usize>, width: usize) -> bool {
    rows <= gemv::MAX_ROWS && columns.len() == width && b.transposed().has_whole_rows()
}
