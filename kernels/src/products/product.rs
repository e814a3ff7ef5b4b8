//! A block of a product divided into tasks: each computes some rows and some columns, and writes them once.

use std::ops::Range;

use bytemuck::cast_slice_mut;

use super::{
    Epilogue, Format, Halves, Kernel, PackRows, PackedMatrix, PackedRows, PackedTarget, Results,
    TILE, View, finish::Place,
};
use crate::threads::parallel::{self, part};
use crate::{cpu::Cpu, memory::lend, threads::Target};

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
    pub(crate) kernel: &'a dyn Kernel<F>,
    pub(crate) b: Columns<'a, F>,
    pub(crate) epilogue: &'a Epilogue<'a, F::Number>,
    pub(crate) y: To<'a, F>,
    pub(crate) cpu: Cpu,
}

impl<F: Format> Columns<'_, F> {
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Self::Packed(b) => (b.rows(), b.columns()),
            Self::InPlace(b) => (b.rows(), b.columns()),
        }
    }

    pub(crate) fn layout(&self) -> F::Layout {
        match self {
            Self::Packed(b) => b.layout(),
            Self::InPlace(_) => F::Layout::default(),
        }
    }

    pub(crate) fn halves(&self) -> Halves {
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
    /// If the epilogue or the target does not fit, or the right operand was packed for another level.
    pub fn new(
        (cpu, kernel): (Cpu, &'a dyn Kernel<F>),
        b: Columns<'a, F>,
        epilogue: &'a Epilogue<'a, F::Number>,
        y: To<'a, F>,
        rows: usize,
    ) -> Self {
        let (depth, columns) = b.shape();
        let to = match &y {
            To::Rows(y) => (y.rows(), y.columns()),
            To::Operand(y) => (y.rows(), y.columns()),
        };
        assert_eq!(to, (rows, columns));
        if let Columns::Packed(b) = b {
            assert_eq!(b.isa(), cpu.isa, "a matrix packed for another level");
        }
        epilogue.check(rows, columns);
        let work = rows.saturating_mul(columns).saturating_mul(depth);
        Self {
            kernel,
            b,
            epilogue,
            y,
            cpu: cpu.for_work(work),
        }
    }

    /// The same product, computed by `threads` threads.
    pub fn on(&self, threads: usize) -> Self {
        let cpu = self.cpu.on(threads);
        Self { cpu, ..*self }
    }

    /// Computes the rows of the result that belong to the packed rows `a`, the first of which is row
    /// `first_row`.
    pub fn block(&self, first_row: usize, a: PackedRows<F::Word>) {
        let (depth, columns) = self.b.shape();
        assert_eq!(a.columns(), depth, "a has other columns than b has rows");
        if columns == 0 {
            return;
        }
        let (units, threads) = (self.units(), self.cpu.threads);
        if let Some(b) = self.streamed(a.rows()) {
            return self.two_streams(first_row, (a, b), &units);
        }
        let (n_units, blocking) = (units.len(), self.kernel.blocking());
        let wanted = match threads {
            1 => 1,
            _ => TASKS_PER_THREAD * threads,
        };
        let n_row_parts = match self.b {
            // A single part, since each would pack the columns again.
            Columns::InPlace(_) => 1,
            Columns::Packed(_) => size_of_val(a.all())
                .div_ceil(blocking.cached_bytes)
                .max(wanted.div_ceil(n_units))
                .clamp(1, a.rows().div_ceil(self.kernel.rows())),
        };
        let n_unit_parts = wanted.div_ceil(n_row_parts).min(n_units);
        parallel::for_tasks(threads, n_row_parts * n_unit_parts, |task| {
            let rows = blocking.part(a.rows(), n_row_parts, task / n_unit_parts);
            let rows = Part {
                first_row: first_row + rows.start,
                rows,
            };
            let n_rows = rows.rows.len();
            self.lend_memory(n_rows, 1, |TaskMemory { sums, staged }| {
                self.kernel.with_tiles(n_rows, &mut || {
                    for unit in part(n_units, n_unit_parts, task % n_unit_parts) {
                        let panels = units.panels(unit);
                        self.placed(&rows, &panels, staged, |place| {
                            for panel in panels.clone() {
                                let results = self.results(&rows, panel, place);
                                self.panel(&rows, panel, a, sums, &results);
                            }
                        });
                    }
                });
            });
        });
    }

    /// The panels, as they are written.
    fn units(&self) -> Units {
        let (_, columns) = self.b.shape();
        let per_panel = self.b.halves().columns_per_panel(self.kernel.panel());
        Units {
            n_panels: columns.div_ceil(per_panel),
            per_unit: match self.y {
                To::Rows(_) => 1,
                // The next operand is packed in whole chunks of columns.
                To::Operand(_) => F::CHUNK / per_panel,
            },
        }
    }

    /// What the results of one panel of a part are made of, and where they go.
    pub(crate) fn results<'b>(
        &'b self,
        part: &Part,
        panel: usize,
        place: &'b Place<'b, F::Number>,
    ) -> Results<'b, F::Number> {
        let (_, n_columns) = self.b.shape();
        let halves = self.b.halves();
        let per_panel = halves.columns_per_panel(self.kernel.panel());
        Results {
            epilogue: self.epilogue,
            isa: self.cpu.isa,
            halves,
            first_row: part.first_row,
            columns: panel * per_panel..n_columns.min((panel + 1) * per_panel),
            n_columns,
            place,
        }
    }

    /// Lends the working memory for `rows` rows of `panels` panels at a time.
    pub(crate) fn lend_memory(
        &self,
        rows: usize,
        panels: usize,
        work: impl FnOnce(&mut TaskMemory<F::Number>),
    ) {
        let width = self.kernel.panel();
        let staged = match self.y {
            To::Operand(_) if !F::NUMBERS => rows * F::CHUNK,
            To::Operand(_) | To::Rows(_) => 0,
        };
        let columns = match self.b {
            Columns::InPlace(_) => F::CHUNK * width,
            Columns::Packed(_) => 0,
        };
        let totals = panels * rows * width;
        lend(TILE, totals + columns + staged, |all| {
            let (totals, rest) = all.split_at_mut(totals);
            let (columns, staged) = rest.split_at_mut(columns);
            let sums = Sums { totals, columns };
            work(&mut TaskMemory { sums, staged });
        });
    }

    /// Calls `work` with the place of a part's results in the panels of one unit, which it is to write.
    pub(crate) fn placed(
        &self,
        part: &Part,
        panels: &Range<usize>,
        staged: &mut [F::Number],
        work: impl FnOnce(&Place<F::Number>),
    ) {
        let n_rows = part.rows.len();
        match self.y {
            To::Rows(y) => work(&Place {
                target: y,
                first_row: part.first_row,
                first_column: 0,
            }),
            To::Operand(y) => {
                let per_panel = self.b.halves().columns_per_panel(self.kernel.panel());
                let first_column = panels.start * per_panel;
                let width = y.columns().min(panels.end * per_panel) - first_column;
                let rows = part.first_row..part.first_row + n_rows;
                // SAFETY: among all tasks and units, only this one writes these rows in this chunk.
                let packed = unsafe { y.chunk(first_column / F::CHUNK, rows) };
                let rows = if F::NUMBERS {
                    cast_slice_mut(&mut *packed)
                } else {
                    &mut *staged
                };
                let target = Target::row_major(rows, n_rows, F::CHUNK);
                work(&Place {
                    target: &target,
                    first_row: 0,
                    first_column,
                });
                if !F::NUMBERS {
                    self.kernel.pack_rows(PackRows {
                        a: View::new(staged, (n_rows, width), (F::CHUNK, 1)),
                        rows: 0..n_rows,
                        columns: 0..width,
                        part: y.part(),
                        packed,
                    });
                }
            }
        }
    }
}

/// Tasks per thread that a block is divided into, so that a thread that is late has help at the end. Time relative to 12
/// of them, least of 7 rounds, f32 on 2 cores of Zen 5, for blocks that threads share:
///
/// ```text
/// rows, d_model x d_ff     3      6      24
/// 13, 768x3072           0.98   1.03   1.00
/// 32, 768x3072           1.00   1.00   1.00
/// 32, 384x1536           1.00   0.99   1.00
/// ```
const TASKS_PER_THREAD: usize = 3;

/// The rows that a task computes.
pub(crate) struct Part {
    /// Which of the packed rows.
    pub rows: Range<usize>,
    /// The row of the result that the first of them is.
    pub first_row: usize,
}

/// The panels of a right operand in units, whose results are written together.
pub(crate) struct Units {
    pub n_panels: usize,
    /// Panels of a unit; the last may have fewer.
    pub per_unit: usize,
}

impl Units {
    fn len(&self) -> usize {
        self.n_panels.div_ceil(self.per_unit)
    }

    /// The panels of a unit.
    fn panels(&self, unit: usize) -> Range<usize> {
        self.panels_of(unit..unit + 1)
    }

    fn panels_of(&self, units: Range<usize>) -> Range<usize> {
        let start = |unit: usize| self.n_panels.min(unit * self.per_unit);
        start(units.start)..start(units.end)
    }

    /// The panels of a thread's share, equal to within a unit.
    pub fn share(&self, thread: usize, threads: usize) -> Range<usize> {
        self.panels_of(part(self.len(), threads, thread))
    }
}

/// The working memory of a task.
pub(crate) struct TaskMemory<'a, T> {
    pub sums: Sums<'a, T>,
    /// Results that are to be packed as the next product's operand, `[rows, CHUNK]`.
    pub staged: &'a mut [T],
}

/// Where panels are added up.
pub(crate) struct Sums<'a, T> {
    /// Totals of the panels computed at a time, `[panels, rows, panel width]`.
    pub totals: &'a mut [T],
    /// A chunk of a panel that is packed on the way.
    pub columns: &'a mut [T],
}
