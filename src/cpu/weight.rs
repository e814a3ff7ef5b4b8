//! A linear map's weight, packed in one of several number formats, and the products it takes part in.

use std::{cell::Cell, ops::Range};

use super::{
    gemm::Epilogue,
    isa::Isa,
    pack::PackedMatrix,
    rows::{PackedRows, Target},
    scratch::{Aligned, Scratch, lend},
    source::Source,
    view::View,
};

/// The format that weights are stored and multiplied in; sums, and all between products, are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// As they are.
    F32,
}

/// The weight `[d_out, d_in]` of a linear map, or two whose results are multiplied, packed.
pub enum PackedWeight {
    /// In f32.
    F32(PackedMatrix<f32>),
}

thread_local!(static INPUT: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) });
static INPUT_ROWS: &Scratch<f32> = &INPUT;
thread_local!(static HIDDEN: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) });
static HIDDEN_ROWS: &Scratch<f32> = &HIDDEN;

/// Rows that are packed at a time: enough that reading all weights for each block costs little, and the
/// working memory stays small.
const BLOCK_ROWS: usize = 512;

impl PackedWeight {
    /// Packs a weight `[d_out, d_in]`.
    pub fn new(format: Format, isa: Isa, weight: View<f32>, threads: usize) -> Self {
        match format {
            Format::F32 => Self::F32(PackedMatrix::new(isa, weight.transposed(), threads)),
        }
    }

    /// Packs the two weights of a gated feed-forward, both `[d_out, d_in]`.
    pub fn gated(format: Format, isa: Isa, gate: View<f32>, up: View<f32>, threads: usize) -> Self {
        let (gate, up) = (gate.transposed(), up.transposed());
        match format {
            Format::F32 => Self::F32(PackedMatrix::gated(isa, gate, up, threads)),
        }
    }

    /// The width of what it is multiplied with.
    pub fn d_in(&self) -> usize {
        match self {
            Self::F32(matrix) => matrix.rows(),
        }
    }

    /// The width of a product.
    pub fn d_out(&self) -> usize {
        match self {
            Self::F32(matrix) => matrix.columns(),
        }
    }

    /// The memory it takes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::F32(matrix) => matrix.bytes(),
        }
    }

    /// `y = epilogue(x · weightᵀ)`, row after row.
    pub fn multiply(&self, x: &Source, epilogue: &Epilogue<f32>, y: &mut [f32], threads: usize) {
        match self {
            Self::F32(matrix) => {
                for_blocks(x, self.d_out(), epilogue, y, |x, epilogue, y| {
                    let y = Target::row_major(y, x.rows(), self.d_out());
                    multiply_block(matrix, &x, epilogue, &y, threads);
                });
            }
        }
    }

    /// `y = epilogue(hidden · weightᵀ)` with `hidden = up_epilogue(x · upᵀ)`, which stays in the cache.
    pub fn multiply_hidden(
        &self,
        up: &Self,
        x: &Source,
        up_epilogue: &Epilogue<f32>,
        epilogue: &Epilogue<f32>,
        y: &mut [f32],
        threads: usize,
    ) {
        match (up, self) {
            (Self::F32(up), Self::F32(down)) => {
                for_blocks(x, down.columns(), epilogue, y, |x, epilogue, y| {
                    let (rows, d_ff) = (x.rows(), up.columns());
                    lend(HIDDEN_ROWS, PackedRows::<f32>::len(rows, d_ff), |hidden| {
                        let target = Target::packed(hidden, rows, d_ff);
                        multiply_block(up, &x, up_epilogue, &target, threads);
                        let hidden = PackedRows::new(hidden, rows, d_ff);
                        let y = Target::row_major(y, rows, down.columns());
                        down.multiply_rows(hidden, epilogue, &y, threads);
                    });
                });
            }
        }
    }
}

/// Packs the rows and multiplies them.
fn multiply_block(
    matrix: &PackedMatrix<f32>,
    x: &Source,
    epilogue: &Epilogue<f32>,
    y: &Target<f32>,
    threads: usize,
) {
    let (rows, width) = (x.rows(), x.width());
    lend(INPUT_ROWS, PackedRows::<f32>::len(rows, width), |packed| {
        x.write(matrix.isa(), &Target::packed(packed, rows, width), threads);
        matrix.multiply_rows(PackedRows::new(packed, rows, width), epilogue, y, threads);
    });
}

/// Calls `work` with blocks of rows, and what belongs to them of the epilogue and the result.
fn for_blocks(
    x: &Source,
    columns: usize,
    epilogue: &Epilogue<f32>,
    y: &mut [f32],
    mut work: impl FnMut(Source, &Epilogue<f32>, &mut [f32]),
) {
    assert_eq!(y.len(), x.rows() * columns);
    let n_blocks = x.rows().div_ceil(BLOCK_ROWS);
    for block in 0..n_blocks {
        let rows = super::gemm::part(x.rows(), n_blocks, block);
        let elements: Range<usize> = rows.start * columns..rows.end * columns;
        let epilogue = Epilogue {
            residual: epilogue
                .residual
                .map(|residual| &residual[elements.clone()]),
            ..*epilogue
        };
        work(x.part(rows), &epilogue, &mut y[elements]);
    }
}
