//! The right operand in the order in which the micro-kernel reads it, in any format.

use std::ops::Range;

use bytemuck::{Zeroable, cast_slice, cast_slice_mut};

use super::{
    Element,
    arch::{Kernels, MOST_LANES, Vectors},
    format::{DotTask, Dots, Format},
    isa::Isa,
    pack::Strip,
    parallel::{self, Shared},
    scratch::{Aligned, lend},
    tile::WIDTH,
    view::View,
};

/// All panels of matrices of one shape, one after the other, each of `F::column_words(depth)` rows of
/// `Dots::PANEL` words, of which every matrix has an equal share. A weight `[n, k]` is
/// `View::new(weight, (n, k), ..).transposed()`. In `panels`' memory, if it is large enough.
pub fn pack<F: Format, S: Element<Acc = F::Number>>(
    mut panels: Aligned<F::Word>,
    isa: Isa,
    matrices: &[View<S>],
    threads: usize,
) -> Aligned<F::Word> {
    let task = PackAll {
        matrices,
        threads,
        panels: &mut panels,
    };
    F::run(isa, task);
    panels
}

struct PackAll<'a, F: Format, S> {
    matrices: &'a [View<'a, S>],
    threads: usize,
    panels: &'a mut Aligned<F::Word>,
}

impl<F: Format, S: Element<Acc = F::Number>> DotTask<F> for PackAll<'_, F, S> {
    fn run<D: Dots<F>>(self, dots: D) {
        let (depth, columns) = (self.matrices[0].rows(), self.matrices[0].columns());
        let words = F::column_words(depth) * D::PANEL;
        let share = D::PANEL / self.matrices.len();
        let n_panels = columns.div_ceil(share);
        self.panels.set_len(n_panels * words);
        if words == 0 {
            return;
        }
        let tasks = n_panels.div_ceil(PANELS_PER_TASK);
        let all = Shared::new(self.panels);
        parallel::for_tasks(self.threads, tasks, |task| {
            let panels = task * PANELS_PER_TASK..n_panels.min((task + 1) * PANELS_PER_TASK);
            // SAFETY: `for_tasks` gives each number out once, and no two tasks have a panel in common.
            let out = unsafe { all.range(panels.start * words..panels.end * words) };
            match self.matrices {
                &[b] if F::NUMBERS && b.has_whole_rows() => {
                    let first = panels.start * share;
                    let columns = first..columns.min(panels.end * share);
                    dots.run(CopyPanels { b, columns, out });
                }
                matrices => {
                    for (panel, out) in panels.zip(out.chunks_exact_mut(words)) {
                        let columns = panel * share..columns.min((panel + 1) * share);
                        if columns.len() < share {
                            out.fill(F::Word::zeroed());
                        }
                        for (i, &b) in matrices.iter().enumerate() {
                            pack_panel(dots, b, columns.clone(), &mut out[i * share..]);
                        }
                    }
                }
            }
        });
    }
}

/// Panels that lie side by side in a matrix are packed together: rows are read in longer pieces.
const PANELS_PER_TASK: usize = 4;

/// Packs columns whose words are their numbers, and whose rows lie whole: nothing is to be turned.
struct CopyPanels<'a, F: Format, S> {
    b: View<'a, S>,
    columns: Range<usize>,
    /// As many panels as the columns take.
    out: &'a mut [F::Word],
}

impl<F: Format, S: Element<Acc = F::Number>> DotTask<F> for CopyPanels<'_, F, S> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, _: D) {
        let (b, columns) = (self.b, self.columns);
        let out = cast_slice_mut::<F::Word, F::Number>(self.out);
        let words = b.rows() * D::PANEL;
        for row in 0..b.rows() {
            let terms = b.row(row, columns.clone());
            for (panel, terms) in terms.chunks(D::PANEL).enumerate() {
                let to = &mut out[panel * words + row * D::PANEL..][..D::PANEL];
                let (filled, rest) = to.split_at_mut(terms.len());
                for (to, term) in filled.iter_mut().zip(terms) {
                    *to = term.widen();
                }
                rest.fill(F::Number::ZERO);
            }
        }
    }
}

/// Packs these columns into a panel, or a share of one that begins with `panel`: `[word][column]`, the words
/// [`Dots::PANEL`] apart. Other columns stay as they are.
pub fn pack_panel<F: Format, D: Dots<F>, S: Element<Acc = F::Number>>(
    dots: D,
    b: View<S>,
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
    lend(F::Number::tile_scratch(), n_gathered, |gathered| {
        lend(
            F::word_scratch(),
            lanes::<F, D>() * F::column_words(depth),
            |words| {
                // What runs within a level's instructions is no closure.
                dots.run(PackPanel {
                    b,
                    columns,
                    gathered,
                    words,
                    panel,
                });
            },
        );
    });
}

/// From a gathered column to the next: a cache line off multiples of a page, which share their place in
/// the cache.
const fn gathered_stride(depth: usize) -> usize {
    depth.next_multiple_of(LINE) + LINE
}

/// Numbers in a cache line of f32.
const LINE: usize = 16;

/// Columns that are turned together.
const fn lanes<F: Format, D: Dots<F>>() -> usize {
    <<D::Vectors as Vectors<F::Number>>::Turner as Vectors<F::Number>>::LANES
}

struct PackPanel<'a, F: Format, S> {
    b: View<'a, S>,
    columns: Range<usize>,
    /// The columns, if they do not lie whole in `b`.
    gathered: &'a mut [F::Number],
    /// Some packed columns.
    words: &'a mut [F::Word],
    panel: &'a mut [F::Word],
}

impl<F: Format, S: Element<Acc = F::Number>> DotTask<F> for PackPanel<'_, F, S> {
    #[inline(always)]
    fn run<D: Dots<F>>(mut self, dots: D) {
        let depth = self.b.rows();
        let n_words = F::column_words(depth);
        if n_words == 0 {
            return;
        }
        if !self.gathered.is_empty() {
            self.gather(dots.vectors().turner());
        }
        let turned = self.b.transposed();
        let panel = cast_slice_mut::<F::Word, F::Number>(self.panel);
        for first in (0..self.columns.len()).step_by(lanes::<F, D>()) {
            let strip = first..self.columns.len().min(first + lanes::<F, D>());
            for (j, words) in strip.clone().zip(self.words.chunks_exact_mut(n_words)) {
                if self.gathered.is_empty() {
                    let terms = turned.row(self.columns.start + j, 0..depth);
                    F::pack_column(terms, words);
                } else {
                    let gathered = &self.gathered[j * gathered_stride(depth)..];
                    F::pack_column(&gathered[..depth], words);
                }
            }
            let words = cast_slice::<F::Word, F::Number>(self.words);
            let strip = Strip {
                from: View::new(words, (strip.len(), n_words), (n_words, 1)),
                rows: 0..strip.len(),
                columns: 0..n_words,
            };
            strip.transpose(dots.vectors().turner(), &mut panel[first..], D::PANEL);
        }
    }
}

impl<F: Format, S: Element<Acc = F::Number>> PackPanel<'_, F, S> {
    /// Copies the columns one after the other.
    #[inline(always)]
    fn gather<V: Vectors<F::Number>>(&mut self, v: V) {
        let (depth, width) = (self.b.rows(), self.columns.len());
        let stride = gathered_stride(depth);
        let mut block = [F::Number::ZERO; LINE * MOST_COLUMNS];
        for first in (0..depth).step_by(LINE) {
            let rows = first..depth.min(first + LINE);
            for (row, to) in rows.clone().zip(block.chunks_exact_mut(width)) {
                if self.b.has_whole_rows() {
                    let row = self.b.row(row, self.columns.clone());
                    for (to, term) in to.iter_mut().zip(row) {
                        *to = term.widen();
                    }
                } else {
                    for (to, column) in to.iter_mut().zip(self.columns.clone()) {
                        *to = self.b.at(row, column).widen();
                    }
                }
            }
            for below in (0..rows.len()).step_by(V::LANES) {
                let strip = Strip {
                    from: View::new(&block, (rows.len(), width), (width, 1)),
                    rows: below..rows.len().min(below + V::LANES),
                    columns: 0..width,
                };
                strip.transpose(v, &mut self.gathered[first + below..], stride);
            }
        }
    }
}

/// No panel has more.
const MOST_COLUMNS: usize = WIDTH * MOST_LANES;
