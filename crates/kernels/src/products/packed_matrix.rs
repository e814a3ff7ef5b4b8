//! A product's packed right operand: a panel sequence. Panels are as wide as a tile. A panel's rows follow each
//! other, and the last panel is padded with zeros. [`format`](super::format) shows the layout.

use std::ops::Range;

use super::{Format, Halves, PACKED, UnpackColumn, View, WithKernel, pack_panels::pack_panels};
use crate::memory::{Aligned, lend};
use crate::{cpu::Cpu, vectors::Isa};

/// A right operand packed in a format, for one instruction set only.
pub struct PackedMatrix<F: Format> {
    isa: Isa,
    rows: usize,
    columns: usize,
    halves: Halves,
    /// Columns per panel.
    width: usize,
    layout: F::Layout,
    panels: Aligned<F::Word>,
}

impl<F: WithKernel> PackedMatrix<F> {
    /// Packs `b` into newly allocated memory.
    #[cfg(test)]
    pub fn new(cpu: Cpu, b: View<F::Element>) -> Self {
        Self::new_in(Aligned::empty(), cpu, F::Layout::default(), b)
    }

    /// Packs `b`. A weight `[n, k]` is packed through its transposed view. Reuses memory that [`Self::into_memory`]
    /// returned, if it is large enough.
    pub fn new_in(
        memory: Aligned<F::Word>,
        cpu: Cpu,
        layout: F::Layout,
        b: View<F::Element>,
    ) -> Self {
        Self::of(memory, cpu, layout, &[b], Halves::One)
    }

    /// Packs a gated feed-forward's gate and up weights. Memory is reused as in [`Self::new_in`].
    pub fn gated_in(
        memory: Aligned<F::Word>,
        cpu: Cpu,
        layout: F::Layout,
        gate: View<F::Element>,
        up: View<F::Element>,
    ) -> Self {
        assert_eq!((gate.rows(), gate.columns()), (up.rows(), up.columns()));
        Self::of(memory, cpu, layout, &[gate, up], Halves::GateAndUp)
    }

    /// Creates a matrix from packed panels, with `rows` as the products' depth.
    pub(super) fn from_panels(
        isa: Isa,
        (rows, columns): (usize, usize),
        (halves, width): (Halves, usize),
        layout: F::Layout,
        panels: Aligned<F::Word>,
    ) -> Self {
        Self {
            isa,
            rows,
            columns,
            halves,
            width,
            layout,
            panels,
        }
    }

    fn of(
        memory: Aligned<F::Word>,
        cpu: Cpu,
        layout: F::Layout,
        matrices: &[View<F::Element>],
        halves: Halves,
    ) -> Self {
        let kernel = F::kernel(cpu.isa);
        let panels = pack_panels(memory, &*kernel, layout, matrices, cpu.threads);
        let shape = (matrices[0].rows(), matrices[0].columns());
        Self::from_panels(cpu.isa, shape, (halves, kernel.panel()), layout, panels)
    }
}

impl<F: WithKernel> PackedMatrix<F> {
    /// Unpacks one column, rounded to the format. Supports single matrices only.
    pub fn unpack_column(&self, column: usize, terms: &mut [F::Element]) {
        assert_eq!((self.halves, terms.len()), (Halves::One, self.rows));
        let panel = column / self.width;
        lend(PACKED, F::column_words(self.layout, self.rows), |words| {
            F::kernel(self.isa).unpack_column(UnpackColumn {
                panel: self.panels(panel..panel + 1),
                column: column % self.width,
                words: &mut *words,
            });
            F::unpack_column(self.layout, words, terms);
        });
    }
}

impl<F: Format> PackedMatrix<F> {
    /// Returns the memory, for packing another matrix.
    pub fn into_memory(self) -> Aligned<F::Word> {
        self.panels
    }

    /// Returns the instruction set that the matrix was packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Returns the row count, which is a product's depth.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the column count.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the words' storage layout.
    pub fn layout(&self) -> F::Layout {
        self.layout
    }

    /// Returns whether it is one matrix or two.
    pub fn halves(&self) -> Halves {
        self.halves
    }

    /// Returns the panels' size in bytes.
    pub fn bytes(&self) -> usize {
        self.panels.len() * size_of::<F::Word>()
    }

    /// Returns all panels' words.
    #[cfg(test)]
    pub fn words(&self) -> &[F::Word] {
        &self.panels
    }

    /// Returns a panel's words, starting with the given chunk.
    pub fn chunk(&self, panel: usize, chunk: usize) -> &[F::Word] {
        &self.panels(panel..panel + 1)[chunk * F::chunk_words(self.layout, F::CHUNK) * self.width..]
    }

    /// Returns consecutive panels' words.
    pub fn panels(&self, panels: Range<usize>) -> &[F::Word] {
        let words = F::column_words(self.layout, self.rows) * self.width;
        &self.panels[panels.start * words..panels.end * words]
    }
}
