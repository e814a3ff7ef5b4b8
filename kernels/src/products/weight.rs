//! The packed weight of a linear map in one of several number formats, and the products it takes part in.
//!
//! This is where a format chosen at run time becomes a type parameter.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use super::{
    Chunks, CodeFormat, CodedRows, Columns, Epilogue, Format, HIDDEN, Halves, Kernel, Matrix,
    PACKED, PackRow, PackedMatrix, PackedRows, PackedTarget, Product, RowBlocks, To, WithKernel,
    formats::{
        coded::Coded,
        heads::{GroupHeads, Heads},
    },
};
use crate::memory::{Aligned, LargePages, lend};
use crate::threads::{Shared, Target};
use crate::{cpu::Cpu, rows::source::Source};

/// The format that weights are stored and multiplied in. Sums, and everything between products, are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// f32, unchanged.
    F32,
    /// IEEE half precision, 16 bits each, times rows in f32; see `products/formats/f16.rs`. Of what is beyond its range,
    /// ±65504, infinity is stored: check before.
    F16,
    /// bfloat16, 16 bits each; see `products/formats/bf16.rs`.
    Bf16,
    /// int8, with a scale for each chunk of each row of the weight; see `products/formats/int8.rs`.
    Int8,
    /// Codes of 4 bits, with a scale and a minimum for each 32 weights of a row; see `products/formats/coded.rs`. Both are f16:
    /// what is beyond its range, ±65504, is cut off.
    Int4By32,
    /// As [`Self::Int4By32`], for each 64.
    Int4By64,
    /// As [`Self::Int4By32`], for each 128.
    Int4By128,
}

impl WeightFormat {
    /// The bits of a weight, without what several share.
    pub fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::Int8 => 8,
            Self::Int4By32 | Self::Int4By64 | Self::Int4By128 => 4,
        }
    }
}

/// The packed weight `[d_out, d_in]` of a linear map, or the two of a gated one, whose results are multiplied.
pub struct PackedWeight {
    matrix: AnyMatrix,
    /// The input that each of the packed inputs is, where their order is another.
    order: Option<Arc<[u32]>>,
}

enum AnyMatrix {
    F32(PackedMatrix<f32>),
    F16(PackedMatrix<f16>),
    Bf16(PackedMatrix<bf16>),
    Int8(PackedMatrix<i8>),
    FourBits(PackedMatrix<Coded<4>>),
    E2m1(PackedMatrix<Coded<4, true>>),
    FiveBits(PackedMatrix<Coded<5>>),
    SixBits(PackedMatrix<Coded<6>>),
    Bytes(PackedMatrix<Coded<8>>),
}

/// Runs `$body` with `$matrix` bound to the packed matrix of whichever format.
macro_rules! with_matrix {
    ($weight:expr, $matrix:ident => $body:expr) => {
        match &$weight.matrix {
            AnyMatrix::F32($matrix) => $body,
            AnyMatrix::F16($matrix) => $body,
            AnyMatrix::Bf16($matrix) => $body,
            AnyMatrix::Int8($matrix) => $body,
            AnyMatrix::FourBits($matrix) => $body,
            AnyMatrix::E2m1($matrix) => $body,
            AnyMatrix::FiveBits($matrix) => $body,
            AnyMatrix::SixBits($matrix) => $body,
            AnyMatrix::Bytes($matrix) => $body,
        }
    };
}

/// Packs a weight of a format chosen at run time: `$pack` uses `$memory`, which comes from `$pages`, and the `$layout`.
macro_rules! in_format {
    ($format:expr, $pages:expr, ($memory:ident, $layout:ident) => $pack:expr) => {
        in_format!($format, $pages, ($memory, $layout) => $pack;
            F32 F32 (), F16 F16 (), Bf16 Bf16 (), Int8 Int8 (),
            Int4By32 FourBits GroupHeads::int4(32),
            Int4By64 FourBits GroupHeads::int4(64),
            Int4By128 FourBits GroupHeads::int4(128)
        )
    };
    ($format:expr, $pages:expr, ($memory:ident, $layout:ident) => $pack:expr; $($of:ident $storage:ident $stored:expr),*) => {
        match $format {
            $(WeightFormat::$of => {
                let ($memory, $layout) = (Aligned::empty_in($pages), $stored);
                PackedWeight::from(AnyMatrix::$storage($pack))
            })*
        }
    };
}

impl PackedWeight {
    /// Packs a weight `[d_out, d_in]` into memory from `pages`.
    pub fn new(cpu: Cpu, format: WeightFormat, weight: Matrix, pages: &LargePages) -> Self {
        let b = weight.transposed().view();
        in_format!(format, pages, (memory, layout) => PackedMatrix::new_in(memory, cpu, layout, b))
    }

    /// Packs the two weights of a gated feed-forward, each `[d_out, d_in]`, into memory from `pages`.
    pub fn gated(
        cpu: Cpu,
        format: WeightFormat,
        gate: Matrix,
        up: Matrix,
        pages: &LargePages,
    ) -> Self {
        let (gate, up) = (gate.transposed().view(), up.transposed().view());
        in_format!(format, pages, (memory, layout) => PackedMatrix::gated_in(memory, cpu, layout, gate, up))
    }

    /// Packs the codes of one weight `[d_out, d_in]`, or of the two of a gated feed-forward, into memory from `pages`; `read`
    /// gives rows of either.
    ///
    /// # Errors
    /// Those of `read`. What cannot be stored, such as a number that is not of the heads' type, becomes one by `refuse`.
    ///
    /// # Panics
    /// If there are no such codes, or none with such heads.
    pub fn of_codes<E>(
        cpu: Cpu,
        format: CodeFormat,
        (shape, is_gated): ([usize; 2], bool),
        pages: &LargePages,
        read: &mut dyn FnMut(usize, Range<usize>) -> Result<CodedRows, E>,
        refuse: impl Fn(usize, String) -> E,
    ) -> Result<Self, E> {
        let halves = match is_gated {
            true => Halves::GateAndUp,
            false => Halves::One,
        };
        let layout = format.layout();
        macro_rules! packed {
            ($($bits:pat, $heads:pat => $storage:ident,)*) => {
                match (format.bits_by_group.0, format.heads) {
                    $(($bits, $heads) => {
                        let (memory, layout) = (Aligned::empty_in(pages), (layout, halves));
                        let of = PackedMatrix::of_codes(memory, cpu, layout, shape, read, refuse);
                        of.map(AnyMatrix::$storage)
                    })*
                }
            };
        }
        let packed = packed!(
            4, Heads::Microscaled => E2m1,
            4, _ => FourBits,
            5, _ => FiveBits,
            6, _ => SixBits,
            _, _ => Bytes,
        );
        packed.map(Self::from)
    }

    /// The same weight, whose packed inputs are `order` of the inputs of products: of codes whose groups are no neighbouring inputs.
    ///
    /// # Panics
    /// If these are not as many.
    pub fn with_order(self, order: Option<Arc<[u32]>>) -> Self {
        assert!(
            order
                .as_ref()
                .is_none_or(|order| order.len() == self.d_in())
        );
        Self { order, ..self }
    }

    /// The width of its input.
    pub fn d_in(&self) -> usize {
        with_matrix!(self, matrix => matrix.rows())
    }

    /// The width of its output.
    pub fn d_out(&self) -> usize {
        with_matrix!(self, matrix => matrix.columns())
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        with_matrix!(self, matrix => matrix.bytes())
    }

    /// A row of the weight `[d_out, d_in]` as products take it: rounded to the format.
    ///
    /// # Panics
    /// If there is no such row, `to` is not as wide as the input, or the weight is that of a gated map.
    pub fn unpack_row(&self, row: usize, to: &mut [f32]) {
        assert!(row < self.d_out(), "row {row} of {}", self.d_out());
        with_matrix!(self, matrix => matrix.unpack_column(row, to));
        if let Some(order) = &self.order {
            let packed = to.to_vec();
            let weights = packed.into_iter().zip(&**order);
            weights.for_each(|(weight, &at)| to[at as usize] = weight);
        }
    }

    /// `y = epilogue(x · weightᵀ)`; `y` is row-major without gaps.
    ///
    /// # Panics
    /// If the lengths do not fit, or the weight was packed for another instruction set.
    pub fn multiply(&self, cpu: Cpu, x: &Source, epilogue: &Epilogue<f32>, y: &mut [f32]) {
        assert_eq!(y.len(), x.rows() * self.d_out());
        with_matrix!(self, matrix => map(LinearMap {
            cpu,
            up: None,
            down: matrix,
            x: &x.in_order(self.order.as_deref()),
            epilogue,
            y: Shared::new(y),
        }));
    }

    /// `y = epilogue(hidden · weightᵀ)` with `hidden = up_epilogue(x · upᵀ)`, which is packed as it is computed
    /// and stays in the cache.
    ///
    /// Of weights in different formats, or where this one has an order of its own, the hidden rows are written and packed again,
    /// a block at a time.
    ///
    /// # Panics
    /// If the weights were packed for another instruction set.
    pub fn multiply_hidden(
        &self,
        cpu: Cpu,
        (up, up_epilogue): (&Self, &Epilogue<f32>),
        x: &Source,
        epilogue: &Epilogue<f32>,
        y: &mut [f32],
    ) {
        assert_eq!(y.len(), x.rows() * self.d_out());
        macro_rules! matching {
            ($($storage:ident)*) => {
                match (&up.matrix, &self.matrix) {
                    $((AnyMatrix::$storage(of_up), AnyMatrix::$storage(down)) if self.order.is_none() => map(LinearMap {
                        cpu,
                        up: Some((of_up, up_epilogue)),
                        down,
                        x: &x.in_order(up.order.as_deref()),
                        epilogue,
                        y: Shared::new(y),
                    }),)*
                    _ => self.multiply_between(cpu, (up, up_epilogue), x, epilogue, y),
                }
            };
        }
        matching!(F32 F16 Bf16 Int8 FourBits E2m1 FiveBits SixBits Bytes);
    }

    /// As [`Self::multiply_hidden`], with the hidden rows in f32 between the products.
    fn multiply_between(
        &self,
        cpu: Cpu,
        (up, up_epilogue): (&Self, &Epilogue<f32>),
        x: &Source,
        epilogue: &Epilogue<f32>,
        y: &mut [f32],
    ) {
        let (d_ff, d_out) = (up.d_out(), self.d_out());
        for start in (0..x.rows()).step_by(BETWEEN_ROWS) {
            let rows = start..x.rows().min(start + BETWEEN_ROWS);
            let elements = rows.start * d_out..rows.end * d_out;
            let epilogue = Epilogue {
                residual: epilogue
                    .residual
                    .map(|residual| &residual[elements.clone()]),
                ..*epilogue
            };
            lend(HIDDEN, rows.len() * d_ff, |hidden: &mut [f32]| {
                up.multiply(cpu, &x.part(rows), up_epilogue, hidden);
                self.multiply(cpu, &Source::new(hidden, d_ff), &epilogue, &mut y[elements]);
            });
        }
    }
}

impl From<AnyMatrix> for PackedWeight {
    fn from(matrix: AnyMatrix) -> Self {
        Self {
            matrix,
            order: None,
        }
    }
}

/// Hidden rows that are in memory at a time, where weights have different formats.
const BETWEEN_ROWS: usize = 512;

/// One linear map, or two with an epilogue between them.
struct LinearMap<'a, F: Format> {
    cpu: Cpu,
    up: Option<(&'a PackedMatrix<F>, &'a Epilogue<'a, f32>)>,
    down: &'a PackedMatrix<F>,
    x: &'a Source<'a>,
    epilogue: &'a Epilogue<'a, f32>,
    y: Shared<'a, f32>,
}

fn map<F: WithKernel<Number = f32>>(map: LinearMap<F>) {
    map.compute(&*F::kernel(map.cpu.isa));
}

impl<F: Format<Number = f32>> LinearMap<'_, F> {
    fn compute(&self, kernel: &dyn Kernel<F>) {
        let chunks = kernel.chunks(self.down.layout());
        let row_words = |columns| PackedRows::<F::Word>::words(1, columns, chunks);
        let hidden = self.up.map_or(0, |(up, _)| row_words(up.columns()));
        let rows = RowBlocks {
            len: self.x.rows(),
            per_tile: kernel.rows(),
            blocking: kernel.blocking(),
            row_bytes: (row_words(self.x.width()) + hidden) * size_of::<F::Word>(),
            weight_bytes: self.down.bytes(),
        };
        rows.for_blocks(self.cpu.threads, |rows, threads| {
            self.block((self.cpu.on(threads), kernel), rows);
        });
    }

    /// Computes some rows of the result, which no other call computes.
    fn block(&self, on: (Cpu, &dyn Kernel<F>), rows: Range<usize>) {
        let (up, down, epilogue) = (self.up, self.down, self.epilogue);
        let (n_rows, columns, chunks) = (rows.len(), down.columns(), on.1.chunks(down.layout()));
        let elements = rows.start * columns..rows.end * columns;
        let residual = epilogue.residual;
        let epilogue = Epilogue {
            residual: residual.map(|residual| &residual[elements.clone()]),
            ..*epilogue
        };
        // SAFETY: no two calls have a row in common.
        let y = unsafe { self.y.range(elements) };
        let y = Target::row_major(y, n_rows, columns);
        let x = self.x.part(rows);
        let product = Product::new(on, Columns::Packed(down), &epilogue, To::Rows(&y), n_rows);
        let Some((up, up_epilogue)) = up else {
            return with_packed(on, &x, chunks, |x| product.block(0, x));
        };
        let d_ff = up.columns();
        let words = PackedRows::<F::Word>::words(n_rows, d_ff, chunks);
        lend(HIDDEN, words, |hidden| {
            let to = PackedTarget::new(hidden, n_rows, d_ff, chunks);
            let (columns, to) = (Columns::Packed(up), To::Operand(&to));
            let up_product = Product::new(on, columns, up_epilogue, to, n_rows);
            with_packed(on, &x, on.1.chunks(up.layout()), |x| up_product.block(0, x));
            product.block(0, PackedRows::new(hidden, n_rows, d_ff, chunks));
        });
    }
}

/// Packs rows, normalized if so asked, and lends them to `work`.
fn with_packed<F: Format<Number = f32>>(
    (cpu, kernel): (Cpu, &dyn Kernel<F>),
    x: &Source,
    chunks: Chunks,
    work: impl FnOnce(PackedRows<F::Word>),
) {
    let (rows, width) = (x.rows(), x.width());
    let words = PackedRows::<F::Word>::words(rows, width, chunks);
    lend(PACKED, words, |packed| {
        let to = PackedTarget::new(packed, rows, width, chunks);
        x.for_rows(cpu, |i, row| {
            // SAFETY: `for_rows` gives out each row once.
            kernel.pack_row(unsafe { PackRow::new(row, i, &to) });
        });
        work(PackedRows::new(packed, rows, width, chunks));
    });
}
