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

pub use super::epilogue::Epilogue;
use super::{
    arch::{Kernels, Task, Vectors},
    gemv::{self, InPlaceTile},
    isa::Isa,
    pack::{PackColumns, PackRows, PackedMatrix},
    parallel::{self, SharedRows},
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
    epilogue: Epilogue<T>,
    y: &mut [T],
    threads: usize,
) {
    if a.rows() > BLOCK_ROWS {
        // Each block would pack `b` anew.
        PackedMatrix::new(isa, b, threads).multiply(a, epilogue, y, threads);
    } else {
        run(isa, a, Columns::InPlace(b), epilogue, y, threads);
    }
}

/// As [`multiply`], with a right operand that was packed before.
pub(super) fn multiply_packed<T: Kernels>(
    b: &PackedMatrix<T>,
    a: View<T>,
    epilogue: Epilogue<T>,
    y: &mut [T],
    threads: usize,
) {
    run(b.isa(), a, Columns::Packed(b), epilogue, y, threads);
}

fn run<T: Kernels>(
    isa: Isa,
    a: View<T>,
    b: Columns<T>,
    epilogue: Epilogue<T>,
    y: &mut [T],
    threads: usize,
) {
    let (depth, columns) = b.shape();
    assert_eq!(a.columns(), depth, "a has other columns than b has rows");
    assert!(epilogue.bias.is_none_or(|bias| bias.len() == columns));
    assert_eq!(Some(y.len()), a.rows().checked_mul(columns));
    if y.is_empty() {
        return;
    }
    let work = a.rows().saturating_mul(columns).saturating_mul(depth);
    let threads = if work < PARALLEL_FROM { 1 } else { threads };
    let product = Product {
        a,
        b,
        epilogue,
        y: SharedRows::new(y, columns),
        threads,
    };
    T::run(isa, product);
}

/// Fewer multiplications than this stay on the calling thread. One thread takes some 9 µs for so many,
/// and waking another costs as much.
const PARALLEL_FROM: usize = 1 << 19;

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
}

struct Product<'a, T> {
    a: View<'a, T>,
    b: Columns<'a, T>,
    epilogue: Epilogue<'a, T>,
    y: SharedRows<'a, T>,
    threads: usize,
}

impl<T: Kernels> Task<T> for Product<'_, T> {
    fn run<V: Vectors<T>>(self, vectors: V) {
        let (rows, depth) = (self.a.rows(), self.a.columns());
        // A product over nothing still has one chunk, of no terms, which is zero.
        let n_chunks = depth.div_ceil(CHUNK).max(1);
        let n_blocks = rows.div_ceil(BLOCK_ROWS);
        for block in 0..n_blocks {
            let rows = part(rows, n_blocks, block);
            lend(T::row_scratch(), rows.len() * n_chunks * CHUNK, |packed| {
                self.pack(vectors, &rows, packed);
                self.block(vectors, &rows, packed);
            });
        }
    }
}

impl<T: Kernels> Product<'_, T> {
    /// Packs a block of rows.
    fn pack<V: Vectors<T>>(&self, v: V, rows: &Range<usize>, packed: &mut [T]) {
        let depth = self.a.columns();
        let threads = if packed.len() < PACK_PARALLEL_FROM {
            1
        } else {
            self.threads
        };
        parallel::for_pieces(threads, packed, rows.len() * CHUNK, |chunk, packed| {
            let columns = chunk * CHUNK..depth.min((chunk + 1) * CHUNK);
            v.run(PackRows {
                a: self.a,
                rows: rows.clone(),
                columns,
                packed,
            });
        });
    }

    /// The rows of the result that belong to a packed block.
    fn block<V: Vectors<T>>(&self, v: V, rows: &Range<usize>, packed: &[T]) {
        let (depth, columns) = self.b.shape();
        let n_panels = columns.div_ceil(WIDTH * V::LANES);
        let n_row_parts = match self.b {
            // Each part packs the columns anew.
            Columns::InPlace(_) => 1,
            Columns::Packed(_) => {
                let bytes = rows.len() * depth * size_of::<T>();
                bytes
                    .div_ceil(CACHED_BYTES)
                    .clamp(1, rows.len().div_ceil(V::ROWS))
            }
        };
        let n_panel_parts = if self.threads == 1 {
            1
        } else {
            (4 * self.threads).div_ceil(n_row_parts).min(n_panels)
        };
        parallel::for_tasks(self.threads, n_row_parts * n_panel_parts, |task| {
            let part = Part {
                block: rows.clone(),
                rows: part(rows.len(), n_row_parts, task / n_panel_parts),
                panels: part(n_panels, n_panel_parts, task % n_panel_parts),
            };
            self.part(v, &part, packed);
        });
    }

    /// Some rows of a block, and some panels.
    fn part<V: Vectors<T>>(&self, v: V, part: &Part, packed: &[T]) {
        let width = WIDTH * V::LANES;
        let length = part.rows.len() * width;
        lend(T::tile_scratch(), length + CHUNK * width, |scratch| {
            let (totals, columns) = scratch.split_at_mut(length);
            for panel in part.panels.clone() {
                self.panel(v, part, panel, packed, totals, columns);
            }
        });
    }

    /// One panel of a part.
    fn panel<V: Vectors<T>>(
        &self,
        v: V,
        part: &Part,
        panel: usize,
        packed: &[T],
        totals: &mut [T],
        scratch: &mut [T],
    ) {
        let width = WIDTH * V::LANES;
        let (depth, n_columns) = self.b.shape();
        let first_column = panel * width;
        let columns = first_column..n_columns.min(first_column + width);
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
                        a: &packed[chunk * part.block.len() * CHUNK..],
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
                        first_column,
                        rows: terms.clone(),
                        panel: scratch,
                    });
                    &scratch[..]
                }
            };
            for tile in 0..n_tiles {
                let rows = self::part(part.rows.len(), n_tiles, tile);
                let first_row = part.rows.start + rows.start;
                v.run(Tile {
                    rows: rows.len(),
                    depth: terms.len(),
                    a: &packed[(chunk * part.block.len() + first_row) * CHUNK..],
                    b,
                    totals: &mut totals[rows.start * width..rows.end * width],
                    total,
                });
            }
        }
        v.run(Finish {
            epilogue: self.epilogue,
            first_row: part.block.start + part.rows.start,
            columns,
            sums: totals,
            y: &self.y,
        });
    }

    /// Whether a panel is faster read where it lies than packed.
    fn reads_in_place(&self, b: View<T>, columns: &Range<usize>, width: usize) -> bool {
        self.a.rows() <= gemv::MOST_ROWS
            && columns.len() == width
            && b.transposed().has_whole_rows()
    }
}

/// Writes the results of a panel.
struct Finish<'a, T> {
    epilogue: Epilogue<'a, T>,
    first_row: usize,
    columns: Range<usize>,
    /// As many columns as a tile has.
    sums: &'a [T],
    y: &'a SharedRows<'a, T>,
}

impl<T: Kernels> Task<T> for Finish<'_, T> {
    #[inline(always)]
    fn run<V: Vectors<T>>(self, _: V) {
        for (i, sums) in self.sums.chunks_exact(WIDTH * V::LANES).enumerate() {
            // SAFETY: of all tasks and panels only this one has this row and these columns.
            let y = unsafe { self.y.piece(self.first_row + i, self.columns.clone()) };
            self.epilogue.finish(sums, self.columns.clone(), y);
        }
    }
}

/// Packed elements below which packing stays on the calling thread.
const PACK_PARALLEL_FROM: usize = 1 << 16;

/// What a task computes.
struct Part {
    /// The rows that are packed.
    block: Range<usize>,
    /// Those of the task, counted from the block's first.
    rows: Range<usize>,
    panels: Range<usize>,
}

/// Part `i` of `n` nearly equal parts of `0..len`, the longer ones first.
fn part(len: usize, n: usize, i: usize) -> Range<usize> {
    let (least, longer) = (len / n, len % n);
    let start = |i: usize| i * least + i.min(longer);
    start(i)..start(i + 1)
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
