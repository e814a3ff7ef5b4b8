//! Copies of the operands in the order in which the micro-kernel reads them.
//!
//! The left operand is a [`PackedRows`](super::rows::PackedRows): tiles of any height can be cut from it, and a producer can write
//! it without knowing them. The right operand: panels as wide as a tile, in each the rows one after
//! the other, the last panel filled with zeros.

use std::ops::Range;

use super::{
    Real,
    arch::{Kernels, Task, Vectors, turned},
    gemm::{self, Epilogue},
    isa::Isa,
    parallel,
    rows::{PackedRows, Target},
    scratch::Aligned,
    tile::{CHUNK, WIDTH},
    view::View,
};

/// What the columns of a packed matrix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    /// Those of one matrix.
    One,
    /// Those of two, a vector of one beside a vector of the other, so that the results of both meet in
    /// one tile: a gated feed-forward's gate and up.
    GateAndUp,
}

impl Halves {
    /// Columns of the result that a panel has.
    pub(super) fn columns_per_panel<T: Real, V: Vectors<T>>(self) -> usize {
        match self {
            Self::One => WIDTH * V::LANES,
            Self::GateAndUp => V::LANES,
        }
    }
}

/// A right operand packed for one level of instructions, and so of use with no other.
pub struct PackedMatrix<T> {
    isa: Isa,
    rows: usize,
    columns: usize,
    halves: Halves,
    panels: Aligned<T>,
}

impl<T: Kernels> PackedMatrix<T> {
    /// Packs `b`; a weight `[n, k]` is `View::row_major(weight, n, k).transposed()`.
    pub fn new(isa: Isa, b: View<T>, threads: usize) -> Self {
        Self::pack(isa, b, None, threads)
    }

    /// Packs two matrices of one shape, whose results are to be multiplied.
    pub fn gated(isa: Isa, gate: View<T>, up: View<T>, threads: usize) -> Self {
        assert_eq!((gate.rows(), gate.columns()), (up.rows(), up.columns()));
        Self::pack(isa, gate, Some(up), threads)
    }

    fn pack(isa: Isa, b: View<T>, up: Option<View<T>>, threads: usize) -> Self {
        let mut panels = Aligned::empty();
        T::run(
            isa,
            PackAll {
                b,
                up,
                threads,
                panels: &mut panels,
            },
        );
        Self {
            isa,
            rows: b.rows(),
            columns: b.columns(),
            halves: up.map_or(Halves::One, |_| Halves::GateAndUp),
            panels,
        }
    }

    /// The level it was packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns of a product.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Whether it is of one matrix or of two.
    pub fn halves(&self) -> Halves {
        self.halves
    }

    /// The memory it takes.
    pub fn bytes(&self) -> usize {
        self.panels.len() * size_of::<T>()
    }

    /// `y = epilogue(a · self)`; see [`gemm::multiply`].
    pub fn multiply(&self, a: View<T>, epilogue: &Epilogue<T>, y: &Target<T>, threads: usize) {
        gemm::multiply_packed(self, a, epilogue, y, threads);
    }

    /// As [`Self::multiply`], of rows that are packed.
    pub fn multiply_rows(
        &self,
        a: PackedRows<T>,
        epilogue: &Epilogue<T>,
        y: &Target<T>,
        threads: usize,
    ) {
        gemm::multiply_rows(self, a, epilogue, y, threads);
    }

    /// These rows of a panel of this width.
    pub(super) fn rows_of_panel(&self, panel: usize, rows: Range<usize>, width: usize) -> &[T] {
        let start = panel * self.rows;
        &self.panels[(start + rows.start) * width..(start + rows.end) * width]
    }
}

struct PackAll<'a, T> {
    b: View<'a, T>,
    up: Option<View<'a, T>>,
    threads: usize,
    panels: &'a mut Aligned<T>,
}

impl<T: Kernels> Task<T> for PackAll<'_, T> {
    fn run<V: Vectors<T>>(self, vectors: V) {
        let width = WIDTH * V::LANES;
        let depth = self.b.rows();
        let halves = self.up.map_or(Halves::One, |_| Halves::GateAndUp);
        let per_panel = halves.columns_per_panel::<T, V>();
        let n_panels = self.b.columns().div_ceil(per_panel);
        *self.panels = Aligned::zeros(n_panels * depth * width);
        if depth == 0 {
            return;
        }
        parallel::for_pieces(self.threads, self.panels, depth * width, |panel, out| {
            let first_column = panel * per_panel;
            for (half, b) in [Some(self.b), self.up].into_iter().flatten().enumerate() {
                vectors.run(PackColumns {
                    b,
                    columns: first_column..first_column + per_panel,
                    rows: 0..depth,
                    panel: &mut out[half * per_panel..],
                });
            }
        });
    }
}

/// Packs some rows and columns into a panel: `[rows, panel width]`, zeros for columns beyond the last.
pub struct PackColumns<'a, T> {
    /// The right operand.
    pub b: View<'a, T>,
    /// As many as the panel has, or a half of it.
    pub columns: Range<usize>,
    /// Which rows.
    pub rows: Range<usize>,
    /// Where to.
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
        let lanes = <V::Turner as Vectors<T>>::LANES;
        for first in columns.clone().step_by(lanes) {
            let strip = Strip {
                from: b.transposed(),
                rows: first..columns.end.min(first + lanes),
                columns: rows.clone(),
            };
            strip.transpose(v.turner(), &mut panel[first - columns.start..], width);
        }
    }
}

/// Packs some rows of the left operand, in one chunk of columns: `[rows, CHUNK]`.
pub struct PackRows<'a, T> {
    /// The left operand.
    pub a: View<'a, T>,
    /// Which rows.
    pub rows: Range<usize>,
    /// At most a chunk.
    pub columns: Range<usize>,
    /// Where to.
    pub packed: &'a mut [T],
}

impl<T: Real> Task<T> for PackRows<'_, T> {
    #[inline(always)]
    fn run<V: Vectors<T>>(self, v: V) {
        let Self {
            a,
            rows,
            columns,
            packed,
        } = self;
        if a.has_whole_rows() {
            for (row, packed) in rows.zip(packed.chunks_exact_mut(CHUNK)) {
                packed[..columns.len()].copy_from_slice(a.row(row, columns.clone()));
            }
            return;
        }
        let lanes = <V::Turner as Vectors<T>>::LANES;
        for first in columns.clone().step_by(lanes) {
            let strip = Strip {
                from: a.transposed(),
                rows: first..columns.end.min(first + lanes),
                columns: rows.clone(),
            };
            strip.transpose(v.turner(), &mut packed[first - columns.start..], CHUNK);
        }
    }
}

/// `from` into `to`, and zeros after it.
#[inline(always)]
fn copy_padded<T: Real>(from: &[T], to: &mut [T]) {
    let (filled, rest) = to.split_at_mut(from.len());
    filled.copy_from_slice(from);
    rest.fill(T::ZERO);
}

/// Up to `LANES` rows of a matrix, and some columns.
pub struct Strip<'a, T> {
    /// The matrix.
    pub from: View<'a, T>,
    /// Its rows.
    pub rows: Range<usize>,
    /// Its columns.
    pub columns: Range<usize>,
}

impl<T: Real> Strip<'_, T> {
    /// Writes each column as a row, `stride` apart.
    #[inline(always)]
    pub fn transpose<V: Vectors<T>>(self, v: V, to: &mut [T], stride: usize) {
        let (from, first_row, first) = (self.from, self.rows.start, self.columns.start);
        let (n_rows, n_columns) = (self.rows.len(), self.columns.len());
        let in_turns = if n_rows == V::LANES && from.has_whole_rows() {
            n_columns - n_columns % turned::<T>()
        } else {
            0
        };
        for turn in (0..in_turns).step_by(turned::<T>()) {
            let source = from.from(first_row, first + turn);
            assert!(source.len() >= (V::LANES - 1) * from.row_stride() + turned::<T>());
            let target = &mut to[turn * stride..][..(turned::<T>() - 1) * stride + V::LANES];
            let store = |j: usize, column: V::Vector| {
                // SAFETY: j < turned, and `target` reaches from its start to the end of the last column.
                unsafe { v.store(column, target.as_mut_ptr().add(j * stride)) }
            };
            // SAFETY: `source` was seen to reach to the end of the last row.
            unsafe { v.for_columns(source.as_ptr(), from.row_stride(), store) };
        }
        for j in in_turns..n_columns {
            for i in 0..n_rows {
                to[j * stride + i] = from.at(first_row + i, first + j);
            }
        }
    }
}
