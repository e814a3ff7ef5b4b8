//! Packing of the right operand into panels, in any format; [`format`](super::format) draws the layout.
//!
//! A column's terms are rounded to words first ([`Format::pack_column`]), a few columns at a time; these are
//! then transposed into the panel, whose rows the micro-kernel loads as vectors.

use std::ops::Range;

use bytemuck::Zeroable;

use super::{
    Format, Kernel, PACKED, PackByRows, PackPanel, TILE, View, pack_panel::gathered_stride,
};
use crate::memory::{Aligned, lend};
use crate::threads::{Shared, parallel};

/// Packs matrices of one shape together: returns all panels, in order. Each panel has `F::column_words` rows of as many words
/// as the kernel's panels have columns, of which every matrix has an equal share. A weight `[n, k]` is the transposed view of
/// itself. Reuses the memory of `panels`, if it is large enough.
pub fn pack_panels<F: Format>(
    mut panels: Aligned<F::Word>,
    (kernel, layout): (&dyn Kernel<F>, F::Layout),
    matrices: &[View<F::Number>],
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
                        pack_panel((kernel, layout), b, columns.clone(), &mut out[i * share..]);
                    }
                    kernel.arrange(out);
                }
            }
        }
    });
    panels
}

/// Panels packed by one task: neighbours in the matrix, so that its rows are read in longer pieces.
const PANELS_PER_TASK: usize = 4;

/// Packs these columns into a panel, or into a matrix's share of one, which begins with `panel`:
/// `[word][column]`, with rows a panel's width apart. The other columns of the panel are left as they are. Behind the last of
/// them comes [`Kernel::arrange`].
pub fn pack_panel<F: Format>(
    (kernel, layout): (&dyn Kernel<F>, F::Layout),
    b: View<F::Number>,
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
