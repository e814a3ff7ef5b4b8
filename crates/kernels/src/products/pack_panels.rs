//! Packs the right operand into panels, in any format. [`format`](super::format) shows the layout.
//!
//! [`Format::pack_column`] rounds the values of a few columns to words. The words are then transposed into the
//! panel, whose rows the micro-kernel loads as vectors.

use std::ops::Range;

use bytemuck::Zeroable;

use super::{
    Format, Kernel, PACKED, PackByRows, PackPanel, TILE, View, pack_panel::gathered_stride,
};
use crate::memory::{Aligned, lend};
use crate::threads::{Shared, parallel};

/// Packs matrices with equal shapes together, and returns all panels in order. A panel has `F::column_words` rows
/// with one word per column, and every matrix has an equal column share. A weight `[n, k]` is packed through its
/// transposed view. Reuses `panels`' memory, if it is large enough.
pub fn pack_panels<F: Format>(
    mut panels: Aligned<F::Word>,
    kernel: &dyn Kernel<F>,
    layout: F::Layout,
    matrices: &[View<F::Element>],
    threads: usize,
) -> Aligned<F::Word> {
    let (depth, columns) = (matrices[0].rows(), matrices[0].columns());
    let words = F::column_words(layout, depth) * kernel.panel();
    let share = kernel.panel() / matrices.len();
    let n_panels = columns.div_ceil(share);
    panels.set_len(n_panels * words);
    if words == 0 {
        return panels;
    }
    let tasks = n_panels.div_ceil(PANELS_PER_TASK);
    let all = Shared::new(&mut panels);
    parallel::for_tasks(threads, tasks, |task| {
        let panels = task * PANELS_PER_TASK..n_panels.min((task + 1) * PANELS_PER_TASK);
        // SAFETY: `for_tasks` gives out each number once, and no two tasks have a panel in common.
        let out = unsafe { all.range(panels.start * words..panels.end * words) };
        match *matrices {
            [b] if F::BY_ROWS && b.has_whole_rows() => {
                let first = panels.start * share;
                let columns = first..columns.min(panels.end * share);
                kernel.pack_by_rows(PackByRows {
                    b,
                    columns,
                    out: &mut *out,
                });
                for panel in out.chunks_exact_mut(words) {
                    kernel.arrange(panel);
                }
            }
            _ => {
                for (panel, out) in panels.zip(out.chunks_exact_mut(words)) {
                    let columns = panel * share..columns.min((panel + 1) * share);
                    if columns.len() < share {
                        out.fill(F::Word::zeroed());
                    }
                    for (i, &b) in matrices.iter().enumerate() {
                        pack_panel(kernel, layout, b, columns.clone(), &mut out[i * share..]);
                    }
                    kernel.arrange(out);
                }
            }
        }
    });
    panels
}

/// Panels per task. They are adjacent in the matrix, so that its rows are read in longer pieces.
const PANELS_PER_TASK: usize = 4;

/// Packs columns into a panel, or into a matrix's share in a panel, starting at `panel`. The layout is
/// `[word][column]`, with rows one panel width apart. The panel's other columns are left unchanged. After the last
/// column, the caller runs [`Kernel::arrange`].
pub fn pack_panel<F: Format>(
    kernel: &dyn Kernel<F>,
    layout: F::Layout,
    b: View<F::Element>,
    columns: Range<usize>,
    panel: &mut [F::Word],
) {
    let depth = b.rows();
    let in_place = b.transposed().has_whole_rows();
    let n_gathered = if in_place {
        0
    } else {
        columns.len() * gathered_stride(depth)
    };
    let n_words = kernel.transposed_columns() * F::column_words(layout, depth);
    lend(TILE, n_gathered, |gathered| {
        lend(PACKED, n_words, |words| {
            kernel.pack_panel(PackPanel {
                layout,
                b,
                columns,
                gathered,
                words,
                panel,
            });
        });
    });
}
