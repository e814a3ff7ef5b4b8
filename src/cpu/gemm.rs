//! Products of matrices, `y = a·b`, the same bits however they are computed.
//!
//! **The order of addition.** Each element of `y` is a sum over `k` of `a[i][k] · b[k][j]`. The terms
//! of [`CHUNK`] consecutive `k` are added one by one, first to last, to a sum that starts at zero,
//! each with one rounding (two at the portable level); the chunks' sums are added one by one, first
//! to last, to the first chunk's; the epilogue comes last. Nothing else enters: not the other rows
//! or their number, nor the threads, nor whether `b` is packed. So a row of `y` has the same bits in
//! every product with the same `b` at the same [`Isa`]. Short chains also round less than one long
//! one: at a depth of 768 the error is near `√CHUNK + √(768 / CHUNK)` roundings rather than `√768`.
//!
//! **The order of work.** Rows are packed in blocks; tasks of some panels of columns each take a part
//! of the block. Within a task, a panel's chunk stays in the first cache while the tiles of rows go
//! by, and their totals in the second.

use std::ops::Range;

pub use super::epilogue::{Epilogue, Map, Scale};
use super::{
    arch::{Kernels, Task, Vectors},
    epilogue::Finish,
    gemv::{self, InPlaceTile},
    isa::Isa,
    pack::{Halves, PackColumns, PackRows, PackedMatrix},
    parallel,
    rows::{PackedRows, Target},
    scratch::lend,
    tile::{CHUNK, Tile, Total, WIDTH},
    view::View,
};

/// Rows that are packed at a time: enough that packing columns for each block costs little, and the
/// working memory stays small.
const BLOCK_ROWS: usize = 512;

/// Bytes of packed rows that stay in the second cache while panels go by: half of the 1 MiB that
/// is usual.
const CACHED_BYTES: usize = 512 << 10;

/// `y = epilogue(a · b)`, row after row without gaps.
///
/// # Panics
/// If the lengths do not fit.
pub fn multiply<T: Kernels>(
    isa: Isa,
    a: View<T>,
    b: View<T>,
    epilogue: &Epilogue<T>,
    y: &mut [T],
    threads: usize,
) {
    let y = Target::row_major(y, a.rows(), b.columns());
    if a.rows() > BLOCK_ROWS {
        // Each block would pack `b` anew.
        PackedMatrix::new(isa, b, threads).multiply(a, epilogue, &y, threads);
    } else {
        run(
            isa,
            Rows::InPlace(a),
            Columns::InPlace(b),
            epilogue,
            &y,
            threads,
        );
    }
}

/// As [`multiply`], with a right operand that was packed before.
pub(super) fn multiply_packed<T: Kernels>(
    b: &PackedMatrix<T>,
    a: View<T>,
    epilogue: &Epilogue<T>,
    y: &Target<T>,
    threads: usize,
) {
    run(
        b.isa(),
        Rows::InPlace(a),
        Columns::Packed(b),
        epilogue,
        y,
        threads,
    );
}

/// As [`multiply_packed`], with a left operand that was packed too.
pub(super) fn multiply_rows<T: Kernels>(
    b: &PackedMatrix<T>,
    a: PackedRows<T>,
    epilogue: &Epilogue<T>,
    y: &Target<T>,
    threads: usize,
) {
    run(
        b.isa(),
        Rows::Packed(a),
        Columns::Packed(b),
        epilogue,
        y,
        threads,
    );
}

fn run<T: Kernels>(
    isa: Isa,
    a: Rows<T>,
    b: Columns<T>,
    epilogue: &Epilogue<T>,
    y: &Target<T>,
    threads: usize,
) {
    let (rows, a_columns) = a.shape();
    let (depth, columns) = b.shape();
    assert_eq!(a_columns, depth, "a has other columns than b has rows");
    assert_eq!((y.rows(), y.columns()), (rows, columns));
    epilogue.check(rows, columns);
    if rows == 0 || columns == 0 {
        return;
    }
    let work = rows.saturating_mul(columns).saturating_mul(depth);
    let threads = if work < parallel::worthwhile() {
        1
    } else {
        threads
    };
    let product = Product {
        a,
        b,
        epilogue,
        y,
        threads,
    };
    T::run(isa, product);
}

/// The left operand.
#[derive(Clone, Copy)]
enum Rows<'a, T> {
    Packed(PackedRows<'a, T>),
    InPlace(View<'a, T>),
}

impl<T: Kernels> Rows<'_, T> {
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Packed(a) => (a.rows(), a.columns()),
            Self::InPlace(a) => (a.rows(), a.columns()),
        }
    }
}

/// The right operand.
#[derive(Clone, Copy)]
enum Columns<'a, T> {
    Packed(&'a PackedMatrix<T>),
    InPlace(View<'a, T>),
}

impl<T: Kernels> Columns<'_, T> {
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Packed(b) => (b.rows(), b.columns()),
            Self::InPlace(b) => (b.rows(), b.columns()),
        }
    }

    fn halves(&self) -> Halves {
        match self {
            Self::Packed(b) => b.halves(),
            Self::InPlace(_) => Halves::One,
        }
    }
}

struct Product<'a, T> {
    a: Rows<'a, T>,
    b: Columns<'a, T>,
    epilogue: &'a Epilogue<'a, T>,
    y: &'a Target<'a, T>,
    threads: usize,
}

impl<T: Kernels> Task<T> for Product<'_, T> {
    fn run<V: Vectors<T>>(self, vectors: V) {
        let a = match self.a {
            Rows::Packed(a) => return self.block(vectors, 0, a),
            Rows::InPlace(a) => a,
        };
        let n_blocks = a.rows().div_ceil(BLOCK_ROWS);
        for block in 0..n_blocks {
            let rows = part(a.rows(), n_blocks, block);
            let first_row = rows.start;
            let (n_rows, columns) = (rows.len(), a.columns());
            lend(
                T::row_scratch(),
                PackedRows::<T>::len(n_rows, columns),
                |packed| {
                    pack_rows(vectors, a, rows, packed, self.threads);
                    self.block(vectors, first_row, PackedRows::new(packed, n_rows, columns));
                },
            );
        }
    }
}

/// Packs some rows.
fn pack_rows<T: Kernels, V: Vectors<T>>(
    v: V,
    a: View<T>,
    rows: Range<usize>,
    packed: &mut [T],
    threads: usize,
) {
    let depth = a.columns();
    let threads = if packed.len() < PACK_PARALLEL_FROM {
        1
    } else {
        threads
    };
    parallel::for_pieces(threads, packed, rows.len() * CHUNK, |chunk, packed| {
        let columns = chunk * CHUNK..depth.min((chunk + 1) * CHUNK);
        v.run(PackRows {
            a,
            rows: rows.clone(),
            columns,
            packed,
        });
    });
}

impl<T: Kernels> Product<'_, T> {
    /// The rows of the result that belong to packed ones.
    fn block<V: Vectors<T>>(&self, v: V, first_row: usize, a: PackedRows<T>) {
        let (depth, columns) = self.b.shape();
        let n_panels = columns.div_ceil(self.b.halves().columns_per_panel::<T, V>());
        let n_row_parts = match self.b {
            // Each part packs the columns anew.
            Columns::InPlace(_) => 1,
            Columns::Packed(_) => {
                let bytes = a.rows() * depth * size_of::<T>();
                bytes
                    .div_ceil(CACHED_BYTES)
                    .clamp(1, a.rows().div_ceil(V::ROWS))
            }
        };
        let n_panel_parts = if self.threads == 1 {
            1
        } else {
            (4 * self.threads).div_ceil(n_row_parts).min(n_panels)
        };
        parallel::for_tasks(self.threads, n_row_parts * n_panel_parts, |task| {
            let part = Part {
                first_row,
                rows: part(a.rows(), n_row_parts, task / n_panel_parts),
                panels: part(n_panels, n_panel_parts, task % n_panel_parts),
            };
            self.part(v, &part, a);
        });
    }

    /// Some rows of a block, and some panels.
    fn part<V: Vectors<T>>(&self, v: V, part: &Part, a: PackedRows<T>) {
        let width = WIDTH * V::LANES;
        let length = part.rows.len() * width;
        lend(T::tile_scratch(), length + CHUNK * width, |scratch| {
            let (totals, columns) = scratch.split_at_mut(length);
            for panel in part.panels.clone() {
                self.panel(v, part, panel, a, totals, columns);
            }
        });
    }

    /// One panel of a part.
    fn panel<V: Vectors<T>>(
        &self,
        v: V,
        part: &Part,
        panel: usize,
        a: PackedRows<T>,
        totals: &mut [T],
        scratch: &mut [T],
    ) {
        let width = WIDTH * V::LANES;
        let (depth, n_columns) = self.b.shape();
        let halves = self.b.halves();
        let per_panel = halves.columns_per_panel::<T, V>();
        let columns = panel * per_panel..n_columns.min((panel + 1) * per_panel);
        let n_chunks = depth.div_ceil(CHUNK).max(1);
        let n_tiles = part.rows.len().div_ceil(V::ROWS);
        for chunk in 0..n_chunks {
            let terms = chunk * CHUNK..depth.min((chunk + 1) * CHUNK);
            let total = if chunk == 0 {
                Total::New
            } else {
                Total::Running
            };
            let b = match self.b {
                Columns::Packed(b) => b.rows_of_panel(panel, terms.clone(), width),
                Columns::InPlace(b) if self.reads_in_place(b, &columns, width) => {
                    v.run(InPlaceTile {
                        rows: part.rows.len(),
                        a: a.chunk(chunk, 0),
                        weight: b.transposed(),
                        terms,
                        columns: columns.clone(),
                        totals,
                        total,
                    });
                    continue;
                }
                Columns::InPlace(b) => {
                    v.run(PackColumns {
                        b,
                        columns: columns.start..columns.start + width,
                        rows: terms.clone(),
                        panel: scratch,
                    });
                    &scratch[..]
                }
            };
            for tile in 0..n_tiles {
                let rows = self::part(part.rows.len(), n_tiles, tile);
                v.run(Tile {
                    rows: rows.len(),
                    depth: terms.len(),
                    a: a.chunk(chunk, part.rows.start + rows.start),
                    b,
                    totals: &mut totals[rows.start * width..rows.end * width],
                    total,
                });
            }
        }
        v.run(Finish {
            epilogue: self.epilogue,
            halves,
            first_row: part.first_row + part.rows.start,
            columns,
            sums: totals,
            y: self.y,
        });
    }

    /// Whether a panel is faster read where it lies than packed.
    fn reads_in_place(&self, b: View<T>, columns: &Range<usize>, width: usize) -> bool {
        self.y.rows() <= gemv::MOST_ROWS
            && columns.len() == width
            && b.transposed().has_whole_rows()
    }
}

/// Packed elements below which packing stays on the calling thread.
const PACK_PARALLEL_FROM: usize = 1 << 16;

/// What a task computes.
struct Part {
    /// The result's row of the first packed one.
    first_row: usize,
    /// Of the packed rows.
    rows: Range<usize>,
    panels: Range<usize>,
}

/// Part `i` of `n` nearly equal parts of `0..len`, the longer ones first.
pub(super) fn part(len: usize, n: usize, i: usize) -> Range<usize> {
    let (least, longer) = (len / n, len % n);
    let start = |i: usize| i * least + i.min(longer);
    start(i)..start(i + 1)
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
