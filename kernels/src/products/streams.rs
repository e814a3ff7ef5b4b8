//! Products of a row or two with a packed weight, which take as long as reading the weight.
//!
//! A single panel has too few sums to keep up with a cache ([`panel_pair`] says why), so two are computed at a time.
//! Every thread has a share of the panels, equal to within one, and reads it in runs. The two panels come from either
//! half of a run, so that each half is a sequential stream, which the hardware prefetcher follows.
//!
//! ```text
//! panels     0  1  2  3  4  5  6  7  8  9 10 11 12 | 13 14 ..        thread 0's share | thread 1's
//! run 0      ─────────►  ─────────►                     pairs 0 and 4, 1 and 5, 2 and 6, 3 and 7
//! run 1                              ────► ────►  ─►     pairs 8 and 10, 9 and 11; 12 by itself
//! ```

use std::ops::Range;

use super::product::{TaskMemory, Units};
use super::{
    Columns, FinishPanels, Format, PackedMatrix, PackedRows, PanelPairs, Part, Product, To,
    panel_pair,
};
use crate::threads::parallel::{self, part};

/// Bytes of a run, which share the cost of beginning and of writing the results: of few, a cache would deliver more
/// meanwhile; many would leave a thread that is late without others who could help it.
const RUN_BYTES: usize = 1 << 20;

/// The most panels of a run, whose totals should stay in the first-level cache.
const MAX_PANELS: usize = 64;

impl<'a, F: Format> Product<'a, F> {
    /// The weight, if a block of so many rows is computed by [`Self::two_streams`].
    pub(crate) fn streamed(&self, rows: usize) -> Option<&'a PackedMatrix<F>> {
        // A level with fewer registers would spill the sums of two panels.
        let fits = rows <= panel_pair::MAX_ROWS && 2 * rows <= self.kernel.rows();
        match self.b {
            Columns::Packed(b) if fits => Some(b),
            Columns::Packed(_) | Columns::InPlace(_) => None,
        }
    }

    /// As [`Self::block`], for a row or two.
    pub(crate) fn two_streams(
        &self,
        first_row: usize,
        (a, b): (PackedRows<F::Word>, &PackedMatrix<F>),
        units: &Units,
    ) {
        let n_rows = a.rows();
        let rows = Part {
            rows: 0..n_rows,
            first_row,
        };
        // What a run is made of: pairs of panels, or what is written together.
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
                    To::Rows(_) => panels.len().max(1),
                    To::Operand(_) => units.per_unit,
                };
                let totals = sums
                    .totals
                    .chunks_mut(together * n_rows * self.kernel.panel());
                for (first, totals) in panels.clone().step_by(together).zip(totals) {
                    let panels = first..panels.end.min(first + together);
                    self.placed(&rows, &panels, staged, |place| {
                        self.kernel.finish_panels(FinishPanels {
                            first: self.results(&rows, first, place),
                            n_rows,
                            totals,
                        });
                    });
                }
            });
        });
    }

    /// Writes the totals of some panels, `[panels, rows, panel width]`, in pairs.
    fn sum(
        &self,
        a: PackedRows<F::Word>,
        b: &PackedMatrix<F>,
        panels: &Range<usize>,
        totals: &mut [F::Number],
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
            self.whole_panel((rows, packed, a_stride), b.chunk(end, 0), single);
        }
    }
}
