//! The packed right operand of a product: a sequence of panels as wide as a tile, each with its rows one after
//! the other, and the last one padded with zeros. [`format`](super::format) draws it.

use std::ops::Range;

use super::{Format, Halves, PACKED, UnpackColumn, View, WithKernel, pack_panels::pack_panels};
use crate::memory::{Aligned, lend};
use crate::{cpu::Cpu, vectors::Isa};

/// A right operand packed in a format for one level of instructions; other levels cannot use it.
pub struct PackedMatrix<F: Format> {
    isa: Isa,
    rows: usize,
    columns: usize,
    halves: Halves,
    /// Columns of a panel.
    width: usize,
    layout: F::Layout,
    panels: Aligned<F::Word>,
}

impl<F: WithKernel> PackedMatrix<F> {
    /// As [`Self::new_in`], in newly allocated memory.
    #[cfg(test)]
    pub fn new(cpu: Cpu, b: View<F::Number>) -> Self {
        Self::new_in(Aligned::empty(), cpu, F::Layout::default(), b)
    }

    /// Packs `b`; a weight `[n, k]` is the transposed view of itself. Reuses memory that [`Self::into_memory`]
    /// returned, if it is large enough.
    pub fn new_in(
        memory: Aligned<F::Word>,
        cpu: Cpu,
        layout: F::Layout,
        b: View<F::Number>,
    ) -> Self {
        Self::of(memory, cpu, layout, &[b], Halves::One)
    }

    /// Packs two matrices of one shape whose results are to be multiplied; memory as for [`Self::new_in`].
    pub fn gated_in(
        memory: Aligned<F::Word>,
        cpu: Cpu,
        layout: F::Layout,
        gate: View<F::Number>,
        up: View<F::Number>,
    ) -> Self {
        assert_eq!((gate.rows(), gate.columns()), (up.rows(), up.columns()));
        Self::of(memory, cpu, layout, &[gate, up], Halves::GateAndUp)
    }

    /// Of panels that are packed already, for products of a depth and so many columns.
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
        matrices: &[View<F::Number>],
        halves: Halves,
    ) -> Self {
        let kernel = F::kernel(cpu.isa);
        let panels = pack_panels(memory, (&*kernel, layout), matrices, cpu.threads);
        let shape = (matrices[0].rows(), matrices[0].columns());
        Self::from_panels(cpu.isa, shape, (halves, kernel.panel()), layout, panels)
    }
}

impl<F: WithKernel> PackedMatrix<F> {
    /// A column as products take it, of a single matrix.
    pub fn unpack_column(&self, column: usize, terms: &mut [F::Number]) {
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
    /// Its memory, for packing another matrix.
    pub fn into_memory(self) -> Aligned<F::Word> {
        self.panels
    }

    /// The level that it was packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The number of rows, which is the depth of a product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns of a product.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How its words are stored.
    pub fn layout(&self) -> F::Layout {
        self.layout
    }

    /// Whether it holds one matrix or two.
    pub fn halves(&self) -> Halves {
        self.halves
    }

    /// Bytes of memory that the panels take.
    pub fn bytes(&self) -> usize {
        self.panels.len() * size_of::<F::Word>()
    }

    /// All panels.
    #[cfg(test)]
    pub fn words(&self) -> &[F::Word] {
        &self.panels
    }

    /// The words of a panel from a chunk on.
    pub fn chunk(&self, panel: usize, chunk: usize) -> &[F::Word] {
        &self.panels(panel..panel + 1)[chunk * F::chunk_words(self.layout, F::CHUNK) * self.width..]
    }

    /// The words of consecutive panels.
    pub fn panels(&self, panels: Range<usize>) -> &[F::Word] {
        let words = F::column_words(self.layout, self.rows) * self.width;
        &self.panels[panels.start * words..panels.end * words]
    }
}
