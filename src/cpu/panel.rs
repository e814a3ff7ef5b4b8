//! The right operand in the order in which the micro-kernel reads it, in any format.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};

use super::{
    Element,
    arch::{Kernels, Vectors},
    format::{DotTask, Dots, Format},
    isa::Isa,
    pack::Strip,
    parallel,
    scratch::{Aligned, lend},
    view::View,
};

/// All panels of `b`, one after the other, each of `F::column_words(depth)` rows of `Dots::PANEL` words.
/// A weight `[n, k]` is `View::new(weight, (n, k), ..).transposed()`.
pub fn pack<F: Format, S: Element<Acc = F::Number>>(
    isa: Isa,
    b: View<S>,
    threads: usize,
) -> Aligned<F::Word> {
    let mut panels = Aligned::empty();
    let task = PackAll {
        b,
        threads,
        panels: &mut panels,
    };
    F::run(isa, task);
    panels
}

struct PackAll<'a, F: Format, S> {
    b: View<'a, S>,
    threads: usize,
    panels: &'a mut Aligned<F::Word>,
}

impl<F: Format, S: Element<Acc = F::Number>> DotTask<F> for PackAll<'_, F, S> {
    fn run<D: Dots<F>>(self, dots: D) {
        let (depth, columns) = (self.b.rows(), self.b.columns());
        let words = F::column_words(depth) * D::PANEL;
        *self.panels = Aligned::zeros(columns.div_ceil(D::PANEL) * words);
        if words == 0 {
            return;
        }
        parallel::for_pieces(self.threads, self.panels, words, |panel, out| {
            let first = panel * D::PANEL;
            let columns = first..columns.min(first + D::PANEL);
            pack_panel(dots, self.b, columns, out);
        });
    }
}

/// Packs the panel of these columns, at most [`Dots::PANEL`]: `[word][column]`, and zeros for columns
/// that are not there.
pub fn pack_panel<F: Format, D: Dots<F>, S: Element<Acc = F::Number>>(
    dots: D,
    b: View<S>,
    columns: Range<usize>,
    panel: &mut [F::Word],
) {
    let depth = b.rows();
    let in_place = b.transposed().has_whole_rows();
    let n_gathered = if in_place { 0 } else { columns.len() * depth };
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
            self.gather();
        }
        let turned = self.b.transposed();
        let panel = cast_slice_mut::<F::Word, F::Number>(self.panel);
        let panel = &mut panel[..n_words * D::PANEL];
        if self.columns.len() < D::PANEL {
            panel.fill(F::Number::ZERO);
        }
        for first in (0..self.columns.len()).step_by(lanes::<F, D>()) {
            let strip = first..self.columns.len().min(first + lanes::<F, D>());
            for (j, words) in strip.clone().zip(self.words.chunks_exact_mut(n_words)) {
                if self.gathered.is_empty() {
                    let terms = turned.row(self.columns.start + j, 0..depth);
                    F::pack_column(terms, words);
                } else {
                    F::pack_column(&self.gathered[j * depth..][..depth], words);
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
    fn gather(&mut self) {
        let depth = self.b.rows();
        for k in 0..depth {
            if self.b.has_whole_rows() {
                let row = self.b.row(k, self.columns.clone());
                for (column, term) in self.gathered.chunks_exact_mut(depth).zip(row) {
                    column[k] = term.widen();
                }
            } else {
                let columns = self.gathered.chunks_exact_mut(depth);
                for (column, j) in columns.zip(self.columns.clone()) {
                    column[k] = self.b.at(k, j).widen();
                }
            }
        }
    }
}
