//! Products of up to four rows with a packed weight, which are bound by reading the weight.
//!
//! A single panel has too few sums to keep up with a cache (see [`panel_pair`]), so two panels are computed at a
//! time. Each thread has a panel share, equal to within one, and reads it in runs. A pair's two panels come from a
//! run's two halves, so that each half is a sequential stream for the hardware prefetcher.
//!
//! ```text
//! panels     0  1  2  3  4  5  6  7  8  9 10 11 12 | 13 14 ..        thread 0's share | thread 1's
//! run 0      ─────────►  ─────────►                     pairs 0 and 4, 1 and 5, 2 and 6, 3 and 7
//! run 1                              ────► ────►  ─►     pairs 8 and 10, 9 and 11; 12 alone
//! ```

use std::ops::Range;

use super::product::{TaskMemory, Units};
use super::{
    ApplyEpilogueToPanels, Columns, Format, PackedMatrix, PackedRows, PanelPairs, Product,
    TaskRows, To, Total,
};
use crate::threads::parallel::{self, part};

/// Bytes in a run, over which starting and writing results is amortized. In shorter runs, the time that a cache
/// needs for the start and the end would dominate. In longer runs, no other thread could help a late one.
const RUN_BYTES: usize = 1 << 20;

/// The maximum panel count in a run, whose totals should stay in the L1 cache.
const MAX_PANELS: usize = 64;

impl<'a, F: Format> Product<'a, F> {
    /// Returns the weight, if [`Self::two_streams`] computes blocks with this many rows.
    pub(crate) fn streamed(&self, rows: usize) -> Option<&'a PackedMatrix<F>> {
        // Instruction sets with fewer registers would spill two panels' sums.
        let fits = rows <= F::PAIRED_ROWS && 2 * rows <= self.kernel.rows();
        match self.b {
            Columns::Packed(b) if fits && self.before() == Total::New => Some(b),
            Columns::Packed(_) | Columns::InPlace(_) => None,
        }
    }

    /// Like [`Self::block`], for few rows.
    pub(crate) fn two_streams(
        &self,
        first_row: usize,
        a: PackedRows<F::Word>,
        b: &PackedMatrix<F>,
        units: &Units,
    ) {
        let n_rows = a.rows();
        let rows = TaskRows {
            rows: 0..n_rows,
            first_row,
        };
        // A step is a pair of panels, or the panels that are written together.
        let step = units.per_unit.max(2);
        let step_bytes = step * b.bytes() / units.n_panels;
        let most = (RUN_BYTES / step_bytes.max(1)).clamp(1, MAX_PANELS / step);
        let share = |thread: usize| units.share(thread, self.cpu.threads);
        let steps = |share: &Range<usize>| share.len().div_ceil(step);
        let n_runs = steps(&share(0)).div_ceil(most);
        parallel::for_tasks(self.cpu.threads, self.cpu.threads * n_runs, |task| {
            let share = share(task / n_runs);
            let run = part(steps(&share), n_runs, task % n_runs);
            let panel = |at: usize| share.end.min(share.start + at * step);
            let panels = panel(run.start)..panel(run.end);
            self.lend_memory(n_rows, panels.len(), |TaskMemory { sums, staged }| {
                self.kernel.with_tiles(n_rows, &mut || {
                    self.sum(a, b, &panels, sums.totals);
                });
                let together = match self.y {
                    To::Rows(_) | To::Sums(_) => panels.len().max(1),
                    To::Operand(_) => units.per_unit,
                };
                let totals = sums
                    .totals
                    .chunks_mut(together * n_rows * self.kernel.panel());
                for (first, totals) in panels.clone().step_by(together).zip(totals) {
                    let panels = first..panels.end.min(first + together);
                    self.placed(&rows, &panels, staged, |place| {
                        self.kernel.apply_epilogue_to_panels(ApplyEpilogueToPanels {
                            first: self.results(&rows, first, place),
                            n_rows,
                            totals,
                        });
                    });
                }
            });
        });
    }

    /// Computes some panels' totals, `[panels, rows, panel width]`, in pairs.
    fn sum(
        &self,
        a: PackedRows<F::Word>,
        b: &PackedMatrix<F>,
        panels: &Range<usize>,
        totals: &mut [F::Element],
    ) {
        let (rows, depth) = (a.rows(), b.rows());
        let (packed, a_stride) = (a.all(), a.chunk_words());
        let end = panels.start + panels.len() / 2 * 2;
        let n_paired = (end - panels.start) * rows * self.kernel.panel();
        let (paired, single) = totals.split_at_mut(n_paired);
        if !paired.is_empty() {
            self.kernel.multiply_pairs(PanelPairs {
                rows,
                depth,
                a: packed,
                a_stride,
                b: b.panels(panels.start..end),
                layout: b.layout(),
                totals: paired,
            });
        }
        if end < panels.end {
            self.whole_panel(
                rows,
                (packed, a_stride),
                b.chunk(end, 0),
                single,
                Total::New,
            );
        }
    }
}
