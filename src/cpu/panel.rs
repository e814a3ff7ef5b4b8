//! Packing of the right operand into panels, in any format; [`format`](super::format) draws the layout.
//!
//! A column's terms are rounded to words first ([`Format::pack_column`]), a few columns at a time; these are
//! then transposed into the panel, whose rows the micro-kernel loads as vectors.

use std::ops::Range;

use bytemuck::{Zeroable, cast_slice, cast_slice_mut};

use super::{
    Element,
    arch::{Kernels, MAX_LANES, Vectors},
    format::{DotTask, Dots, Format},
    isa::Isa,
    pack::Strip,
    parallel::{self, Shared},
    scratch::{Aligned, lend},
    tile::WIDTH,
    view::View,
};

/// Packs matrices of one shape together: returns all panels, in order. Each panel has `F::column_words(depth)`
/// rows of `Dots::PANEL` words, of which every matrix has an equal share. A weight `[n, k]` is
/// `View::new(weight, (n, k), ..).transposed()`. Reuses the memory of `panels`, if it is large enough.
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
            // SAFETY: `for_tasks` gives out each number once, and no two tasks have a panel in common.
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

/// How many rows ahead [`CopyPanels`] prefetches.
const ROWS_AHEAD: usize = 8;

/// Panels packed by one task: neighbours in the matrix, so that its rows are read in longer pieces.
const PANELS_PER_TASK: usize = 4;

/// Packs columns whose words are their numbers from contiguous rows: a copy, without transposition.
struct CopyPanels<'a, F: Format, S> {
    b: View<'a, S>,
    columns: Range<usize>,
    /// Panels to write, as many as the columns take.
    out: &'a mut [F::Word],
}

impl<F: Format, S: Element<Acc = F::Number>> DotTask<F> for CopyPanels<'_, F, S> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, d: D) {
        let (b, columns) = (self.b, self.columns);
        let out = cast_slice_mut::<F::Word, F::Number>(self.out);
        let words = b.rows() * D::PANEL;
        for row in 0..b.rows() {
            let terms = b.row(row, columns.clone());
            // The next rows lie far from this one, where the hardware prefetcher does not look.
            let ahead = b.from(row, columns.start).as_ptr();
            let ahead = ahead.wrapping_add(ROWS_AHEAD * b.row_stride());
            for line in (0..terms.len()).step_by(64 / size_of::<S>()) {
                d.vectors().prefetch(ahead.wrapping_add(line).cast());
            }
            for (panel, terms) in terms.chunks(D::PANEL).enumerate() {
                let to = &mut out[panel * words + row * D::PANEL..][..D::PANEL];
                if terms.len() == D::PANEL {
                    // A trip count known at compile time, so that the loop vectorises without a remainder.
                    for j in 0..D::PANEL {
                        to[j] = terms[j].widen();
                    }
                    continue;
                }
                let (filled, rest) = to.split_at_mut(terms.len());
                for (to, term) in filled.iter_mut().zip(terms) {
                    *to = term.widen();
                }
                rest.fill(F::Number::ZERO);
            }
        }
    }
}

/// Packs these columns into a panel, or into a matrix's share of one, which begins with `panel`:
/// `[word][column]`, with rows [`Dots::PANEL`] words apart. The other columns of the panel are left as they
/// are.
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
                // A task struct and not a closure, so that it is compiled with the level's instructions.
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

/// Distance between gathered columns: one cache line more than a multiple of lines, so that columns do not lie
/// multiples of a page apart, which would compete for the same cache sets.
const fn gathered_stride(depth: usize) -> usize {
    depth.next_multiple_of(LINE) + LINE
}

/// Numbers in a cache line of f32.
const LINE: usize = 16;

/// Columns that are transposed together.
const fn lanes<F: Format, D: Dots<F>>() -> usize {
    <<D::Vectors as Vectors<F::Number>>::Transposer as Vectors<F::Number>>::LANES
}

struct PackPanel<'a, F: Format, S> {
    b: View<'a, S>,
    columns: Range<usize>,
    /// The columns, each contiguous, if those of `b` are not; otherwise empty.
    gathered: &'a mut [F::Number],
    /// Up to `lanes` packed columns.
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
            self.gather(dots.vectors().transposer());
        }
        let transposed = self.b.transposed();
        let panel = cast_slice_mut::<F::Word, F::Number>(self.panel);
        for first in (0..self.columns.len()).step_by(lanes::<F, D>()) {
            let strip = first..self.columns.len().min(first + lanes::<F, D>());
            for (j, words) in strip.clone().zip(self.words.chunks_exact_mut(n_words)) {
                if self.gathered.is_empty() {
                    let terms = transposed.row(self.columns.start + j, 0..depth);
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
            strip.transpose(dots.vectors().transposer(), &mut panel[first..], D::PANEL);
        }
    }
}

impl<F: Format, S: Element<Acc = F::Number>> PackPanel<'_, F, S> {
    /// Copies the columns to `gathered`, one after the other.
    #[inline(always)]
    fn gather<V: Vectors<F::Number>>(&mut self, v: V) {
        let (depth, width) = (self.b.rows(), self.columns.len());
        let stride = gathered_stride(depth);
        let mut block = [F::Number::ZERO; LINE * MAX_COLUMNS];
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

/// Columns of the widest panel of any level.
const MAX_COLUMNS: usize = WIDTH * MAX_LANES;
