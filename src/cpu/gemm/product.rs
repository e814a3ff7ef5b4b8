//! A block of a product divided into tasks: each computes some rows and some columns, and writes them once.

use std::ops::Range;

use bytemuck::cast_slice_mut;

use super::{
    super::{
        arch::Kernels,
        epilogue::{Epilogue, Place},
        format::{Dots, Format},
        pack::{Halves, PackedMatrix},
        pack_rows::PackRows,
        panel_pair, parallel,
        rows::{PackedRows, PackedTarget, Target},
        scratch::lend,
        view::View,
    },
    blocks::CACHED_BYTES,
};

/// The right operand of a product.
#[derive(Clone, Copy)]
pub enum Columns<'a, F: Format> {
    Packed(&'a PackedMatrix<F>),
    /// A matrix read where it lies, of a format whose words are its numbers.
    InPlace(View<'a, F::Number>),
}

/// Where the results of a product go.
#[derive(Clone, Copy)]
pub enum To<'a, F: Format> {
    /// To row-major memory.
    Rows(&'a Target<'a, F::Number>),
    /// To the packed left operand of another product.
    Operand(&'a PackedTarget<'a, F::Word>),
}

/// A product, except for its left operand.
pub struct Product<'a, F: Format> {
    pub(super) b: Columns<'a, F>,
    pub(super) epilogue: &'a Epilogue<'a, F::Number>,
    y: To<'a, F>,
    pub(super) threads: usize,
}

impl<F: Format> Columns<'_, F> {
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Self::Packed(b) => (b.rows(), b.columns()),
            Self::InPlace(b) => (b.rows(), b.columns()),
        }
    }

    pub(super) fn halves(&self) -> Halves {
        match self {
            Self::Packed(b) => b.halves(),
            Self::InPlace(_) => Halves::One,
        }
    }
}

impl<'a, F: Format> Product<'a, F> {
    /// For a left operand of `rows` rows in all.
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
        Self {
            b,
            epilogue,
            y,
            threads: parallel::threads_worth(work, threads),
        }
    }

    /// The same product, computed by `threads` threads.
    pub fn on(&self, threads: usize) -> Self {
        Self { threads, ..*self }
    }

    /// Computes the rows of the result that belong to the packed rows `a`, the first of which is row
    /// `first_row`.
    pub fn block<D: Dots<F>>(&self, d: D, first_row: usize, a: PackedRows<F::Word>) {
        let (depth, columns) = self.b.shape();
        assert_eq!(a.columns(), depth, "a has other columns than b has rows");
        if columns == 0 {
            return;
        }
        let per_panel = self.b.halves().columns_per_panel::<F, D>();
        let n_panels = columns.div_ceil(per_panel);
        let stride = self.stride::<D>(a.rows(), n_panels);
        let per_unit = match self.y {
            To::Rows(_) => stride.panels(),
            // The next operand is packed in whole chunks of columns.
            To::Operand(_) => F::CHUNK / per_panel,
        };
        let n_units = n_panels.div_ceil(per_unit);
        let (least, wanted) = match self.threads {
            1 => (1, 1),
            threads => (MIN_TASKS_PER_THREAD * threads, TASKS_PER_THREAD * threads),
        };
        let n_row_parts = match self.b {
            // A single part, since each would pack the columns again.
            Columns::InPlace(_) => 1,
            Columns::Packed(_) => size_of_val(a.all())
                .div_ceil(CACHED_BYTES)
                .max(least.div_ceil(n_units))
                .clamp(1, a.rows().div_ceil(D::ROWS)),
        };
        let n_unit_parts = wanted.div_ceil(n_row_parts).min(n_units);
        parallel::for_tasks(self.threads, n_row_parts * n_unit_parts, |task| {
            let rows = super::part(a.rows(), n_row_parts, task / n_unit_parts);
            let part = Part {
                first_row: first_row + rows.start,
                rows,
                stride,
            };
            let n_rows = part.rows.len();
            let staged = match self.y {
                To::Operand(_) if !F::NUMBERS => n_rows * F::CHUNK,
                To::Operand(_) | To::Rows(_) => 0,
            };
            let totals = n_rows * stride.panels() * D::PANEL;
            let lengths = [totals, F::CHUNK * D::PANEL, staged];
            lend(F::Number::tile_scratch(), lengths.iter().sum(), |memory| {
                let (totals, rest) = memory.split_at_mut(lengths[0]);
                let (columns, staged) = rest.split_at_mut(lengths[1]);
                let mut memory = Memory {
                    totals,
                    columns,
                    staged,
                };
                for unit in super::part(n_units, n_unit_parts, task % n_unit_parts) {
                    let panels = unit * per_unit..n_panels.min((unit + 1) * per_unit);
                    self.unit(d, &part, panels, a, &mut memory);
                }
            });
        });
    }

    /// How many panels are read at a time for `rows` rows.
    fn stride<D: Dots<F>>(&self, rows: usize, n_panels: usize) -> Stride {
        let Columns::Packed(b) = self.b else {
            return Stride::Panel;
        };
        let panel_bytes = b.bytes() / n_panels;
        let pays = rows <= panel_pair::MAX_ROWS
            && 2 * rows <= D::ROWS
            && panel_bytes >= panel_pair::MIN_BYTES
            && n_panels >= 2 * MIN_TASKS_PER_THREAD * self.threads;
        if pays { Stride::Pair } else { Stride::Panel }
    }

    /// Computes a part's rows in the panels of one unit, which are written together.
    fn unit<D: Dots<F>>(
        &self,
        d: D,
        part: &Part,
        panels: Range<usize>,
        a: PackedRows<F::Word>,
        memory: &mut Memory<F::Number>,
    ) {
        let n_rows = part.rows.len();
        match self.y {
            To::Rows(y) => {
                let place = Place {
                    target: y,
                    first_row: part.first_row,
                    first_column: 0,
                };
                self.panels(d, part, panels, a, memory, &place);
            }
            To::Operand(y) => {
                let per_panel = self.b.halves().columns_per_panel::<F, D>();
                let first_column = panels.start * per_panel;
                let width = y.columns().min(panels.end * per_panel) - first_column;
                let rows = part.first_row..part.first_row + n_rows;
                // SAFETY: among all tasks and units, only this one writes these rows in this chunk.
                let packed = unsafe { y.chunk(first_column / F::CHUNK, rows) };
                let staged = std::mem::take(&mut memory.staged);
                let rows = if F::NUMBERS {
                    cast_slice_mut(&mut *packed)
                } else {
                    &mut *staged
                };
                let target = Target::row_major(rows, n_rows, F::CHUNK);
                let place = Place {
                    target: &target,
                    first_row: 0,
                    first_column,
                };
                self.panels(d, part, panels, a, memory, &place);
                if !F::NUMBERS {
                    d.run(PackRows {
                        a: View::new(staged, (n_rows, width), (F::CHUNK, 1)),
                        rows: 0..n_rows,
                        columns: 0..width,
                        packed,
                    });
                }
                memory.staged = staged;
            }
        }
    }
}

/// Tasks per thread that a block is divided into. The last tasks end at different times: with so many, a thread
/// waits for one twelfth of its share at most.
const TASKS_PER_THREAD: usize = 12;

/// With fewer tasks per thread than this, rows are divided as well, though each part reads all columns.
const MIN_TASKS_PER_THREAD: usize = 3;

/// The rows that a task computes.
pub(super) struct Part {
    /// Which of the packed rows.
    pub rows: Range<usize>,
    /// The row of the result that the first of them is.
    pub first_row: usize,
    /// How many panels are read at a time.
    pub stride: Stride,
}

/// How many panels a task reads at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stride {
    Panel,
    Pair,
}

impl Stride {
    fn panels(self) -> usize {
        match self {
            Self::Panel => 1,
            Self::Pair => 2,
        }
    }
}

/// The working memory of a task.
pub(super) struct Memory<'a, T> {
    /// Totals of the panels read at a time, `[panels, rows, columns]`.
    pub totals: &'a mut [T],
    /// A chunk of a panel that is packed on the way.
    pub columns: &'a mut [T],
    /// Results that are to be packed as the next product's operand, `[rows, CHUNK]`.
    staged: &'a mut [T],
}
