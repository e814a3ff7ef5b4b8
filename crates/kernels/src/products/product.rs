//! Divides a product's block into tasks. Each task computes some rows and some columns, and writes them once.

use std::ops::Range;

use bytemuck::cast_slice_mut;

use super::{
    Epilogue, Format, Halves, Kernel, PackRows, PackedMatrix, PackedRows, PackedTarget, Results,
    TILE, Total, View, apply_epilogue::Place,
};
use crate::threads::parallel::{self, part};
use crate::{cpu::Cpu, memory::lend, threads::Target};

/// A product's right operand.
#[derive(Clone, Copy)]
pub enum Columns<'a, F: Format> {
    Packed(&'a PackedMatrix<F>),
    /// An unpacked matrix, in a format whose words are the input values.
    InPlace(View<'a, F::Element>),
}

/// The destination for a product's results.
#[derive(Clone, Copy)]
pub enum To<'a, F: Format> {
    /// Row-major memory.
    Rows(&'a Target<'a, F::Element>),
    /// Row-major memory with totals, to which the product is added.
    Sums(&'a Target<'a, F::Element>),
    /// The next product's packed left operand.
    Operand(&'a PackedTarget<'a, F::Word>),
}

/// A product without its left operand.
pub struct Product<'a, F: Format> {
    pub(crate) kernel: &'a dyn Kernel<F>,
    pub(crate) b: Columns<'a, F>,
    pub(crate) epilogue: &'a Epilogue<'a, F::Element>,
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
    /// Creates a product for a left operand with `rows` rows.
    ///
    /// # Panics
    /// If the epilogue or the destination does not fit, or the right operand was packed for another instruction
    /// set.
    pub fn new(
        (cpu, kernel): (Cpu, &'a dyn Kernel<F>),
        b: Columns<'a, F>,
        epilogue: &'a Epilogue<'a, F::Element>,
        y: To<'a, F>,
        rows: usize,
    ) -> Self {
        let (depth, columns) = b.shape();
        let to = match &y {
            To::Rows(y) | To::Sums(y) => (y.rows(), y.columns()),
            To::Operand(y) => (y.rows(), y.columns()),
        };
        assert_eq!(to, (rows, columns));
        if let Columns::Packed(b) = b {
            assert_eq!(
                b.isa(),
                cpu.isa,
                "the matrix was packed for another instruction set"
            );
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

    /// Returns the same product, computed by `threads` threads.
    pub fn on(&self, threads: usize) -> Self {
        let cpu = self.cpu.on(threads);
        Self { cpu, ..*self }
    }

    /// Computes the result rows for the packed rows `a`. The first is the result's row `first_row`.
    pub fn block(&self, first_row: usize, a: PackedRows<F::Word>) {
        let (depth, columns) = self.b.shape();
        assert_eq!(
            a.columns(),
            depth,
            "the columns of a differ from the rows of b"
        );
        if columns == 0 {
            return;
        }
        let (units, threads) = (self.units(), self.cpu.threads);
        if let Some(b) = self.streamed(a.rows()) {
            return self.two_streams(first_row, a, b, &units);
        }
        let (n_units, blocking) = (units.len(), self.kernel.blocking());
        let wanted = match threads {
            1 => 1,
            _ => TASKS_PER_THREAD * threads,
        };
        let n_row_parts = match self.b {
            // A single part, because each part would pack the columns again.
            Columns::InPlace(_) => 1,
            Columns::Packed(_) => size_of_val(a.all())
                .div_ceil(blocking.cached_bytes)
                .max(wanted.div_ceil(n_units))
                .clamp(1, a.rows().div_ceil(self.kernel.rows())),
        };
        let n_unit_parts = wanted.div_ceil(n_row_parts).min(n_units);
        parallel::for_tasks(threads, n_row_parts * n_unit_parts, |task| {
            let rows = blocking.part(a.rows(), n_row_parts, task / n_unit_parts);
            let rows = TaskRows {
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

    /// Returns the total that the first chunk is added to.
    pub(crate) fn before(&self) -> Total {
        match self.y {
            To::Rows(_) | To::Operand(_) => Total::New,
            To::Sums(_) => Total::Running,
        }
    }

    /// Returns the panels in units that are written together.
    fn units(&self) -> Units {
        let (_, columns) = self.b.shape();
        let per_panel = self.b.halves().columns_per_panel(self.kernel.panel());
        Units {
            n_panels: columns.div_ceil(per_panel),
            per_unit: match self.y {
                To::Rows(_) | To::Sums(_) => 1,
                // The next operand is packed in whole column chunks.
                To::Operand(_) => F::CHUNK / per_panel,
            },
        }
    }

    /// Returns the epilogue, columns and destination for one panel in a task's results.
    pub(crate) fn results<'b>(
        &'b self,
        part: &TaskRows,
        panel: usize,
        place: &'b Place<'b, F::Element>,
    ) -> Results<'b, F::Element> {
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

    /// Lends the working memory for `rows` rows in `panels` panels at a time.
    pub(crate) fn lend_memory(
        &self,
        rows: usize,
        panels: usize,
        work: impl FnOnce(&mut TaskMemory<F::Element>),
    ) {
        let width = self.kernel.panel();
        let staged = match self.y {
            To::Operand(_) if !F::PLAIN => rows * F::CHUNK,
            To::Operand(_) | To::Rows(_) | To::Sums(_) => 0,
        };
        let columns = match self.b {
            Columns::InPlace(_) => F::CHUNK * width,
            Columns::Packed(_) => self.kernel.widened().all(),
        };
        let totals = panels * rows * width;
        lend(TILE, totals + columns + staged, |all| {
            // First, because the memory is aligned for vectors.
            let (columns, rest) = all.split_at_mut(columns);
            let (totals, staged) = rest.split_at_mut(totals);
            let sums = PanelSums { totals, columns };
            work(&mut TaskMemory { sums, staged });
        });
    }

    /// Calls `work` with the destination for a task's results in one unit's panels.
    pub(crate) fn placed(
        &self,
        part: &TaskRows,
        panels: &Range<usize>,
        staged: &mut [F::Element],
        work: impl FnOnce(&Place<F::Element>),
    ) {
        let n_rows = part.rows.len();
        match self.y {
            To::Rows(y) | To::Sums(y) => work(&Place {
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
                let rows = if F::PLAIN {
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
                if !F::PLAIN {
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

/// Tasks per thread in a block, so that other threads can help a late one at the end. Time relative to 12 tasks per
/// thread, minimum over 7 rounds, f32 on 2 Zen 5 cores, for blocks that threads share:
///
/// ```text
/// rows, d_model x d_ff     3      6      24
/// 13, 768x3072           0.98   1.03   1.00
/// 32, 768x3072           1.00   1.00   1.00
/// 32, 384x1536           1.00   0.99   1.00
/// ```
const TASKS_PER_THREAD: usize = 3;

/// The rows that a task computes.
pub(crate) struct TaskRows {
    /// The range within the packed rows.
    pub rows: Range<usize>,
    /// The result row for the first packed row.
    pub first_row: usize,
}

/// A right operand's panels in units. A unit's results are written together.
pub(crate) struct Units {
    pub n_panels: usize,
    /// Panels per unit. The last unit may have fewer.
    pub per_unit: usize,
}

impl Units {
    fn len(&self) -> usize {
        self.n_panels.div_ceil(self.per_unit)
    }

    /// Returns a unit's panels.
    fn panels(&self, unit: usize) -> Range<usize> {
        self.panels_of(unit..unit + 1)
    }

    fn panels_of(&self, units: Range<usize>) -> Range<usize> {
        let start = |unit: usize| self.n_panels.min(unit * self.per_unit);
        start(units.start)..start(units.end)
    }

    /// Returns the panels in a thread's share. Shares are equal to within a unit.
    pub fn share(&self, thread: usize, threads: usize) -> Range<usize> {
        self.panels_of(part(self.len(), threads, thread))
    }
}

/// A task's working memory.
pub(crate) struct TaskMemory<'a, T> {
    pub sums: PanelSums<'a, T>,
    /// Results to be packed as the next product's operand, `[rows, CHUNK]`.
    pub staged: &'a mut [T],
}

/// Working memory for panel sums.
pub(crate) struct PanelSums<'a, T> {
    /// Totals for the panels that are computed together, `[panels, rows, panel width]`.
    pub totals: &'a mut [T],
    /// A panel chunk that is packed or widened on demand.
    pub columns: &'a mut [T],
}
