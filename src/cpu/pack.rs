//! The packed right operand of a product, and the transpositions that packing consists of.
//!
//! The left operand is packed as [`PackedRows`](super::rows::PackedRows): tiles of any height can be cut from
//! it, and a producer can write it without knowing them. The right one is a sequence of panels as wide as a
//! tile, each with its rows one after the other, and the last one padded with zeros; [`format`](super::format)
//! draws both.

use std::ops::Range;

use super::{
    Element, Real,
    arch::{Task, Vectors, columns_at_once},
    format::{Dots, Format},
    gemm::{self, Epilogue},
    isa::Isa,
    panel,
    scratch::Aligned,
    tile::WIDTH,
    view::View,
};

/// What the columns of a packed matrix consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    /// The columns of one matrix.
    One,
    /// Those of two matrices, interleaved so that a vector of the gate's columns lies beside a vector of up's:
    /// both results of a gated feed-forward meet in one tile.
    GateAndUp,
}

impl Halves {
    /// Columns of the result that one panel holds.
    pub(super) fn columns_per_panel<F: Format, D: Dots<F>>(self) -> usize {
        match self {
            Self::One => D::PANEL,
            Self::GateAndUp => D::PANEL / WIDTH,
        }
    }
}

/// A right operand packed in a format for one level of instructions; other levels cannot use it.
pub struct PackedMatrix<F: Format> {
    isa: Isa,
    rows: usize,
    columns: usize,
    halves: Halves,
    panels: Aligned<F::Word>,
}

impl<F: Format> PackedMatrix<F> {
    /// As [`Self::new_in`], in newly allocated memory.
    #[cfg(test)]
    pub fn new<S: Element<Acc = F::Number>>(isa: Isa, b: View<S>, threads: usize) -> Self {
        Self::new_in(Aligned::empty(), isa, b, threads)
    }

    /// Packs `b`; a weight `[n, k]` is `View::row_major(weight, n, k).transposed()`. Reuses memory that
    /// [`Self::into_memory`] returned, if it is large enough.
    pub fn new_in<S: Element<Acc = F::Number>>(
        memory: Aligned<F::Word>,
        isa: Isa,
        b: View<S>,
        threads: usize,
    ) -> Self {
        let panels = panel::pack::<F, S>(memory, isa, &[b], threads);
        Self::of(isa, b, Halves::One, panels)
    }

    /// Its memory, for packing another matrix.
    pub fn into_memory(self) -> Aligned<F::Word> {
        self.panels
    }

    /// Packs two matrices of one shape whose results are to be multiplied; memory as for [`Self::new_in`].
    pub fn gated_in<S: Element<Acc = F::Number>>(
        memory: Aligned<F::Word>,
        isa: Isa,
        gate: View<S>,
        up: View<S>,
        threads: usize,
    ) -> Self {
        assert_eq!((gate.rows(), gate.columns()), (up.rows(), up.columns()));
        let panels = panel::pack::<F, S>(memory, isa, &[gate, up], threads);
        Self::of(isa, gate, Halves::GateAndUp, panels)
    }

    fn of<S: Copy>(isa: Isa, b: View<S>, halves: Halves, panels: Aligned<F::Word>) -> Self {
        Self {
            isa,
            rows: b.rows(),
            columns: b.columns(),
            halves,
            panels,
        }
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

    /// `y = epilogue(a · self)`; see [`gemm::multiply`].
    pub fn multiply(
        &self,
        a: View<F::Number>,
        epilogue: &Epilogue<F::Number>,
        y: &mut [F::Number],
        threads: usize,
    ) {
        gemm::multiply_packed(self, a, epilogue, y, threads);
    }

    /// The words of a panel from a chunk on.
    pub(super) fn chunk<D: Dots<F>>(&self, panel: usize, chunk: usize) -> &[F::Word] {
        &self.panel::<D>(panel)[chunk * F::CHUNK_WORDS * D::PANEL..]
    }

    /// The words of a panel.
    pub(super) fn panel<D: Dots<F>>(&self, panel: usize) -> &[F::Word] {
        self.panels::<D>(panel..panel + 1)
    }

    /// The words of consecutive panels.
    pub(super) fn panels<D: Dots<F>>(&self, panels: Range<usize>) -> &[F::Word] {
        let words = F::column_words(self.rows) * D::PANEL;
        &self.panels[panels.start * words..panels.end * words]
    }
}

/// Packs rows and columns of a plain format into a panel, `[rows][panel width]`, with zeros for columns beyond
/// the last.
pub struct PackColumns<'a, T> {
    /// The right operand.
    pub b: View<'a, T>,
    /// Its columns to pack: as many as the panel has, or half of them.
    pub columns: Range<usize>,
    /// Its rows to pack.
    pub rows: Range<usize>,
    /// The panel, or the rest of it from the first of these columns on.
    pub panel: &'a mut [T],
}

impl<T: Real> Task<T> for PackColumns<'_, T> {
    #[inline(always)]
    fn run<V: Vectors<T>>(self, v: V) {
        let width = WIDTH * V::LANES;
        let Self { b, rows, panel, .. } = self;
        let n_columns = self.columns.len();
        let columns = self.columns.start..b.columns().min(self.columns.end);
        if rows.is_empty() {
            return;
        }
        if b.has_whole_rows() {
            for (row, packed) in rows.zip(panel.chunks_mut(width)) {
                copy_padded(b.row(row, columns.clone()), &mut packed[..n_columns]);
            }
            return;
        }
        if columns.len() < n_columns {
            for packed in panel.chunks_mut(width).take(rows.len()) {
                packed[..n_columns].fill(T::ZERO);
            }
        }
        let lanes = <V::Transposer as Vectors<T>>::LANES;
        for first in columns.clone().step_by(lanes) {
            let strip = Strip {
                from: b.transposed(),
                rows: first..columns.end.min(first + lanes),
                columns: rows.clone(),
            };
            strip.transpose(v.transposer(), &mut panel[first - columns.start..], width);
        }
    }
}

/// Copies some rows of a matrix whose rows are not contiguous, in one chunk of columns.
pub struct GatherRows<'a, T> {
    /// The matrix.
    pub a: View<'a, T>,
    /// Its rows to copy.
    pub rows: Range<usize>,
    /// Its columns to copy, at most a chunk.
    pub columns: Range<usize>,
    /// The copies; consecutive rows are `stride` numbers apart.
    pub gathered: &'a mut [T],
    pub stride: usize,
}

impl<T: Real> Task<T> for GatherRows<'_, T> {
    #[inline(always)]
    fn run<V: Vectors<T>>(self, v: V) {
        let Self {
            a,
            rows,
            columns,
            gathered,
            stride,
        } = self;
        let lanes = <V::Transposer as Vectors<T>>::LANES;
        for first in columns.clone().step_by(lanes) {
            let strip = Strip {
                from: a.transposed(),
                rows: first..columns.end.min(first + lanes),
                columns: rows.clone(),
            };
            strip.transpose(
                v.transposer(),
                &mut gathered[first - columns.start..],
                stride,
            );
        }
    }
}

/// Copies `from` into `to`, and fills the rest with zeros.
#[inline(always)]
fn copy_padded<T: Real>(from: &[T], to: &mut [T]) {
    let (filled, rest) = to.split_at_mut(from.len());
    filled.copy_from_slice(from);
    rest.fill(T::ZERO);
}

/// A strip of a matrix: up to `LANES` rows, and some columns.
pub struct Strip<'a, T> {
    /// The matrix.
    pub from: View<'a, T>,
    /// Rows of the strip.
    pub rows: Range<usize>,
    /// Columns of the strip.
    pub columns: Range<usize>,
}

impl<T: Real> Strip<'_, T> {
    /// Writes each column of the strip as a row of `to`, these `stride` numbers apart.
    #[inline(always)]
    pub fn transpose<V: Vectors<T>>(self, v: V, to: &mut [T], stride: usize) {
        let (from, first_row, first) = (self.from, self.rows.start, self.columns.start);
        let (n_rows, n_columns) = (self.rows.len(), self.columns.len());
        let in_squares = if n_rows == V::LANES && from.has_whole_rows() {
            n_columns - n_columns % columns_at_once::<T>()
        } else {
            0
        };
        for square in (0..in_squares).step_by(columns_at_once::<T>()) {
            let source = from.from(first_row, first + square);
            assert!(source.len() >= (V::LANES - 1) * from.row_stride() + columns_at_once::<T>());
            let target =
                &mut to[square * stride..][..(columns_at_once::<T>() - 1) * stride + V::LANES];
            let store = |j: usize, column: V::Vector| {
                // SAFETY: j < columns_at_once, and `target` reaches from its start to the end of the last of these
                // columns.
                unsafe { v.store(column, target.as_mut_ptr().add(j * stride)) }
            };
            // SAFETY: `source` reaches to the end of the last row, by the assertion above.
            unsafe { v.for_columns(source.as_ptr(), from.row_stride(), store) };
        }
        for j in in_squares..n_columns {
            for i in 0..n_rows {
                to[j * stride + i] = from.at(first_row + i, first + j);
            }
        }
    }
}
