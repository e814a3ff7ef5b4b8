//! Products of matrices, `y = a·b`, the same bits however they are computed.
//!
//! **The order of addition.** Each element of `y` is a sum over `k` of `a[i][k] · b[k][j]`. The terms
//! of [`Format::CHUNK`] consecutive `k` are added one by one, first to last, to a sum that starts at zero,
//! each with one rounding (two at the portable level); the chunks' sums are added one by one, first
//! to last, to the first chunk's; the epilogue comes last. Nothing else enters: not the other rows
//! or their number, nor the threads, nor whether `b` is packed. So a row of `y` has the same bits in
//! every product with the same `b` at the same [`Isa`]. Short chains also round less than one long
//! one: at a depth of 768 the error is near `√CHUNK + √(768 / CHUNK)` roundings rather than `√768`.
//!
//! **The order of work.** Rows are packed in blocks; tasks of some panels of columns each take a part
//! of the block. Within a task, a panel's chunk stays in the first cache while the tiles of rows go
//! by, and their totals in the second. The results are written once, or packed as the left operand of
//! the next product.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};

pub use super::epilogue::{Epilogue, Map, Scale};
use super::{
    Real,
    arch::{Kernels, Vectors},
    dot_tile::{Ahead, DotTile, FewRows},
    epilogue::{Approach, Finish, Place, Results},
    format::{DotTask, Dots, Format},
    gemv::{self, InPlaceTile},
    isa::Isa,
    pack::{Halves, PackColumns, PackedMatrix},
    pack_rows::{PackRows, pack_rows},
    parallel,
    rows::{PackedRows, PackedTarget, Target},
    scratch::{Aligned, lend},
    tile::Total,
    view::View,
};

/// Rows that are packed at a time: enough that packing columns for each block costs little, and the
/// working memory stays small.
pub const BLOCK_ROWS: usize = 256;

/// Bytes of packed rows that stay in the second cache while panels go by: half of the 1 MiB that
/// is usual.
pub(super) const CACHED_BYTES: usize = 512 << 10;

/// A format whose words are its numbers, so that a matrix can be read where it lies: f32 and f64.
pub trait Plain: Kernels + Format<Number = Self, Word = Self> {}

impl<T: Kernels + Format<Number = T, Word = T>> Plain for T {}

/// `y = epilogue(a · b)` in f32 or f64, row after row without gaps.
///
/// # Panics
/// If the lengths do not fit.
pub fn multiply<T: Plain>(
    isa: Isa,
    a: View<T>,
    b: View<T>,
    epilogue: &Epilogue<T>,
    y: &mut [T],
    threads: usize,
) {
    if a.rows() > BLOCK_ROWS {
        // Each block would pack `b` anew.
        let memory = T::hidden_scratch().replace(Aligned::empty());
        let b = PackedMatrix::<T>::new_in(memory, isa, b, threads);
        b.multiply(a, epilogue, y, threads);
        T::hidden_scratch().set(b.into_memory());
        return;
    }
    let y = Target::row_major(y, a.rows(), b.columns());
    let columns = Columns::InPlace(b);
    let product = Product::<T>::new(columns, epilogue, To::Rows(&y), a.rows(), threads);
    <T as Format>::run(isa, WithRows { product, a });
}

/// As [`multiply`], with a right operand that was packed before, in its format.
pub(super) fn multiply_packed<F: Format>(
    b: &PackedMatrix<F>,
    a: View<F::Number>,
    epilogue: &Epilogue<F::Number>,
    y: &mut [F::Number],
    threads: usize,
) {
    let y = Target::row_major(y, a.rows(), b.columns());
    let columns = Columns::Packed(b);
    let product = Product::new(columns, epilogue, To::Rows(&y), a.rows(), threads);
    F::run(b.isa(), WithRows { product, a });
}

/// The right operand.
pub(super) enum Columns<'a, F: Format> {
    Packed(&'a PackedMatrix<F>),
    /// Of a format whose words are numbers.
    InPlace(View<'a, F::Number>),
}

/// Where results go.
pub(super) enum To<'a, F: Format> {
    /// Into rows.
    Rows(&'a Target<'a, F::Number>),
    /// Into the left operand of another product.
    Operand(&'a PackedTarget<'a, F::Word>),
}

/// A product but for its left operand.
pub(super) struct Product<'a, F: Format> {
    b: Columns<'a, F>,
    epilogue: &'a Epilogue<'a, F::Number>,
    y: To<'a, F>,
    threads: usize,
}

/// A product whose left operand is packed on the way.
struct WithRows<'a, F: Format> {
    product: Product<'a, F>,
    a: View<'a, F::Number>,
}

impl<F: Format> DotTask<F> for WithRows<'_, F> {
    fn run<D: Dots<F>>(self, d: D) {
        let Self { product, a } = self;
        let (depth, columns) = product.b.shape();
        assert_eq!(a.columns(), depth, "a has other columns than b has rows");
        let n_blocks = a.rows().div_ceil(BLOCK_ROWS);
        for block in 0..n_blocks {
            let rows = part(a.rows(), n_blocks, block);
            let (first_row, n_rows) = (rows.start, rows.len());
            let words = PackedRows::<F::Word>::words(n_rows, depth, D::CHUNKS);
            lend(F::word_scratch(), words, |packed| {
                pack_rows(d, a, rows, packed, product.threads);
                let packed = PackedRows::new(packed, n_rows, depth, D::CHUNKS);
                product.block(d, first_row, packed);
            });
        }
    }
}

impl<F: Format> Columns<'_, F> {
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

impl<'a, F: Format> Product<'a, F> {
    /// Of so many rows in all.
    ///
    /// # Panics
    /// If the epilogue or the target does not fit.
    pub fn new(
        b: Columns<'a, F>,
        epilogue: &'a Epilogue<'a, F::Number>,
        y: To<'a, F>,
        rows: usize,
        threads: usize,
    ) -> Self {
        let (depth, columns) = b.shape();
        let to = match &y {
            To::Rows(y) => (y.rows(), y.columns()),
            To::Operand(y) => (y.rows(), y.columns()),
        };
        assert_eq!(to, (rows, columns));
        epilogue.check(rows, columns);
        let work = rows.saturating_mul(columns).saturating_mul(depth);
        let threads = if work < parallel::worthwhile() {
            1
        } else {
            threads
        };
        Self {
            b,
            epilogue,
            y,
            threads,
        }
    }

    /// The rows of the result that belong to packed ones, the first of which is `first_row`.
    pub fn block<D: Dots<F>>(&self, d: D, first_row: usize, a: PackedRows<F::Word>) {
        let (depth, columns) = self.b.shape();
        assert_eq!(a.columns(), depth, "a has other columns than b has rows");
        if columns == 0 {
            return;
        }
        let per_panel = self.b.halves().columns_per_panel::<F, D>();
        let n_panels = columns.div_ceil(per_panel);
        let per_unit = match self.y {
            To::Rows(_) => 1,
            // The next operand is packed in whole chunks.
            To::Operand(_) => F::CHUNK / per_panel,
        };
        let n_units = n_panels.div_ceil(per_unit);
        let (least, wanted) = match self.threads {
            1 => (1, 1),
            threads => (LEAST_TASKS_PER_THREAD * threads, TASKS_PER_THREAD * threads),
        };
        let n_row_parts = match self.b {
            // Each part packs the columns anew.
            Columns::InPlace(_) => 1,
            Columns::Packed(_) => size_of_val(a.all())
                .div_ceil(CACHED_BYTES)
                .max(least.div_ceil(n_units))
                .clamp(1, a.rows().div_ceil(D::ROWS)),
        };
        let n_unit_parts = wanted.div_ceil(n_row_parts).min(n_units);
        parallel::for_tasks(self.threads, n_row_parts * n_unit_parts, |task| {
            let rows = part(a.rows(), n_row_parts, task / n_unit_parts);
            let part = Part {
                first_row: first_row + rows.start,
                rows,
            };
            for unit in self::part(n_units, n_unit_parts, task % n_unit_parts) {
                let panels = unit * per_unit..n_panels.min((unit + 1) * per_unit);
                self.unit(d, &part, panels, a);
            }
        });
    }

    /// Some rows of a block, and some panels that are written together.
    fn unit<D: Dots<F>>(&self, d: D, part: &Part, panels: Range<usize>, a: PackedRows<F::Word>) {
        let n_rows = part.rows.len();
        let staged = match self.y {
            To::Rows(_) => 0,
            To::Operand(_) if F::NUMBERS => 0,
            To::Operand(_) => n_rows * F::CHUNK,
        };
        let lengths = [n_rows * D::PANEL, F::CHUNK * D::PANEL, staged];
        lend(F::Number::tile_scratch(), lengths.iter().sum(), |memory| {
            let (totals, rest) = memory.split_at_mut(lengths[0]);
            let (columns, staged) = rest.split_at_mut(lengths[1]);
            match self.y {
                To::Rows(y) => {
                    let place = Place {
                        target: y,
                        first_row: part.first_row,
                        first_column: 0,
                    };
                    for panel in panels {
                        self.panel(d, part, panel, a, totals, columns, &place);
                    }
                }
                To::Operand(y) => {
                    let per_panel = self.b.halves().columns_per_panel::<F, D>();
                    let first_column = panels.start * per_panel;
                    let width = y.columns().min(panels.end * per_panel) - first_column;
                    let rows = part.first_row..part.first_row + n_rows;
                    // SAFETY: of all tasks and units only this one has these rows and this chunk.
                    let packed = unsafe { y.chunk(first_column / F::CHUNK, rows) };
                    let mut write = |rows: &mut [F::Number]| {
                        let target = Target::row_major(rows, n_rows, F::CHUNK);
                        let place = Place {
                            target: &target,
                            first_row: 0,
                            first_column,
                        };
                        for panel in panels.clone() {
                            self.panel(d, part, panel, a, totals, columns, &place);
                        }
                    };
                    if F::NUMBERS {
                        return write(cast_slice_mut(packed));
                    }
                    write(staged);
                    d.run(PackRows {
                        a: View::new(staged, (n_rows, width), (F::CHUNK, 1)),
                        rows: 0..n_rows,
                        columns: 0..width,
                        packed,
                    });
                }
            }
        });
    }

    /// One panel of a part.
    #[allow(clippy::too_many_arguments)] // operands, working memory and place
    fn panel<D: Dots<F>>(
        &self,
        d: D,
        part: &Part,
        panel: usize,
        a: PackedRows<F::Word>,
        totals: &mut [F::Number],
        scratch: &mut [F::Number],
        place: &Place<F::Number>,
    ) {
        let (depth, n_columns) = self.b.shape();
        let halves = self.b.halves();
        let per_panel = halves.columns_per_panel::<F, D>();
        let columns = panel * per_panel..n_columns.min((panel + 1) * per_panel);
        let n_chunks = depth.div_ceil(F::CHUNK).max(1);
        let n_tiles = part.rows.len().div_ceil(D::ROWS);
        let few = match self.b {
            Columns::Packed(b) if part.rows.len() <= FewRows::<F>::MOST_ROWS => {
                self.whole_chunks(d, part, panel, (a, b), totals)
            }
            _ => 0,
        };
        let results = Results {
            epilogue: self.epilogue,
            halves,
            first_row: part.first_row,
            columns: columns.clone(),
            n_columns,
            place,
        };
        let finish = |rows: Range<usize>, sums: &mut [F::Number]| {
            if let Columns::Packed(b) = self.b {
                let last = b.last_words::<D>(panel);
                d.run(Scaled { last, totals: sums });
            }
            let results = &results;
            d.vectors().run(Finish {
                results,
                rows,
                sums,
            });
        };
        if few == n_chunks {
            return finish(0..part.rows.len(), totals);
        }
        for chunk in few..n_chunks {
            let terms = chunk * F::CHUNK..depth.min((chunk + 1) * F::CHUNK);
            let is_last = chunk + 1 == n_chunks;
            let total = if chunk == 0 {
                Total::New
            } else {
                Total::Running
            };
            let b = match self.b {
                Columns::Packed(b) => b.chunk::<D>(panel, chunk),
                Columns::InPlace(b) if reads_in_place(part.rows.len(), b, &columns, D::PANEL) => {
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
                        panel: scratch,
                    });
                    cast_slice(scratch)
                }
            };
            for tile in 0..n_tiles {
                let rows = self::part(part.rows.len(), n_tiles, tile);
                let totals = &mut totals[rows.start * D::PANEL..rows.end * D::PANEL];
                if is_last {
                    d.vectors().run(Approach {
                        results: &results,
                        rows: rows.clone(),
                    });
                }
                d.run(DotTile {
                    rows: rows.len(),
                    depth: terms.len(),
                    a: a.chunk(chunk, part.rows.start + rows.start),
                    b,
                    ahead: if tile + 1 == n_tiles && matches!(self.b, Columns::Packed(_)) {
                        Ahead::NextChunk
                    } else {
                        Ahead::Nothing
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

/// Makes totals sums.
struct Scaled<'a, F: Format> {
    last: &'a [F::Word],
    totals: &'a mut [F::Number],
}

impl<F: Format> DotTask<F> for Scaled<'_, F> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, _: D) {
        F::finish(self.last, self.totals);
    }
}

impl<F: Format> Product<'_, F> {
    /// The first chunks of a panel for few rows, several at a time; returns how many.
    fn whole_chunks<D: Dots<F>>(
        &self,
        d: D,
        part: &Part,
        panel: usize,
        (a, b): (PackedRows<F::Word>, &PackedMatrix<F>),
        totals: &mut [F::Number],
    ) -> usize {
        let at_once = FewRows::<F>::chunks(part.rows.len());
        let whole = a.columns() / F::CHUNK;
        let end = whole - whole % at_once;
        for chunk in (0..end).step_by(at_once) {
            d.run(FewRows {
                rows: part.rows.len(),
                a: a.chunk(chunk, part.rows.start),
                a_stride: a.chunk_words(),
                b: b.chunk::<D>(panel, chunk),
                totals,
                total: if chunk == 0 {
                    Total::New
                } else {
                    Total::Running
                },
            });
        }
        end
    }
}

/// Whether a panel is faster read where it lies than packed.
fn reads_in_place<T: Real>(rows: usize, b: View<T>, columns: &Range<usize>, width: usize) -> bool {
    rows <= gemv::MOST_ROWS && columns.len() == width && b.transposed().has_whole_rows()
}

/// The last tasks end at different times: one of so many parts of a thread's share is not much to wait for.
const TASKS_PER_THREAD: usize = 12;

/// With fewer, rows are cut too, though each part reads all columns.
const LEAST_TASKS_PER_THREAD: usize = 3;

/// The rows that a task computes.
struct Part {
    /// Of the packed rows.
    rows: Range<usize>,
    /// The first of them in the result.
    first_row: usize,
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
