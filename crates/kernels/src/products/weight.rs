//! A linear layer's packed weight in several number formats, and its products.
//!
//! This module converts a format chosen at run time into a type parameter.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use super::{
    Chunks, Columns, Epilogue, Format, HIDDEN, Halves, Kernel, Matrix, PACKED, PackRow,
    PackedMatrix, PackedRows, PackedTarget, Product, QuantizedFormat, QuantizedWeightRows,
    RowBlocks, To, WithKernel,
    formats::{
        group_scales::{E2M1, GroupScales, NON_LINEAR, ScaleLayout},
        quantized::Quantized,
    },
    pack_quantized::{ReadRows, Refused},
};
use crate::memory::{Aligned, LargePages, lend};
use crate::threads::{Shared, Target};
use crate::{cpu::Cpu, rows::source::Source};

/// The storage format for weights, and for their products. Sums and activations are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// f32, unchanged.
    F32,
    /// IEEE half precision (16 bits). Rows stay in f32, see `products/formats/f16.rs`. Weights outside ±65504 become
    /// infinite: check them before.
    F16,
    /// bfloat16 (16 bits), see `products/formats/bf16.rs`.
    Bf16,
    /// int8, with a scale for each chunk of a weight's row, see `products/formats/int8.rs`.
    Int8,
    /// int4, with an f16 scale and an f16 minimum for each 32 weights in a row, see `products/formats/quantized.rs`.
    /// Scales and minima are clamped to ±65504.
    Int4By32,
    /// Like [`Self::Int4By32`], for each 64 weights.
    Int4By64,
    /// Like [`Self::Int4By32`], for each 128 weights.
    Int4By128,
}

impl WeightFormat {
    /// Returns the bits per weight, without scales.
    pub fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::Int8 => 8,
            Self::Int4By32 | Self::Int4By64 | Self::Int4By128 => 4,
        }
    }
}

/// A linear layer's packed weight `[d_out, d_in]`, or a gated feed-forward's gate and up weights.
pub struct PackedWeight {
    matrix: AnyMatrix,
    /// For each packed input, the original input's index, if inputs were reordered.
    order: Option<Arc<[u32]>>,
}

enum AnyMatrix {
    F32(PackedMatrix<f32>),
    F16(PackedMatrix<f16>),
    Bf16(PackedMatrix<bf16>),
    Int8(PackedMatrix<i8>),
    TwoBits(PackedMatrix<Quantized<2>>),
    ThreeBits(PackedMatrix<Quantized<3>>),
    FourBits(PackedMatrix<Quantized<4>>),
    E2m1(PackedMatrix<Quantized<E2M1>>),
    NonLinear(PackedMatrix<Quantized<NON_LINEAR>>),
    FiveBits(PackedMatrix<Quantized<5>>),
    SixBits(PackedMatrix<Quantized<6>>),
    Bytes(PackedMatrix<Quantized<8>>),
}

/// Runs `$body` with `$matrix` bound to the packed matrix in any format.
macro_rules! with_matrix {
    ($weight:expr, $matrix:ident => $body:expr) => {
        match &$weight.matrix {
            AnyMatrix::F32($matrix) => $body,
            AnyMatrix::F16($matrix) => $body,
            AnyMatrix::Bf16($matrix) => $body,
            AnyMatrix::Int8($matrix) => $body,
            AnyMatrix::TwoBits($matrix) => $body,
            AnyMatrix::ThreeBits($matrix) => $body,
            AnyMatrix::FourBits($matrix) => $body,
            AnyMatrix::E2m1($matrix) => $body,
            AnyMatrix::NonLinear($matrix) => $body,
            AnyMatrix::FiveBits($matrix) => $body,
            AnyMatrix::SixBits($matrix) => $body,
            AnyMatrix::Bytes($matrix) => $body,
        }
    };
}

/// Packs a weight in a format chosen at run time: `$pack` uses `$memory`, allocated from `$pages`, and the
/// `$layout`.
macro_rules! in_format {
    ($format:expr, $pages:expr, ($memory:ident, $layout:ident) => $pack:expr) => {
        in_format!($format, $pages, ($memory, $layout) => $pack;
            F32 F32 (), F16 F16 (), Bf16 Bf16 (), Int8 Int8 (),
            Int4By32 FourBits ScaleLayout::int4(32),
            Int4By64 FourBits ScaleLayout::int4(64),
            Int4By128 FourBits ScaleLayout::int4(128)
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

    /// Packs a gated feed-forward's two weights, each `[d_out, d_in]`, into memory from `pages`.
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

    /// Packs one quantized weight `[d_out, d_in]`, or a gated feed-forward's two weights, into memory from `pages`.
    /// `read` returns rows from the weight with the given number.
    ///
    /// # Errors
    /// Errors from `read`. `refuse` converts values that cannot be stored, such as a scale that the scale type does
    /// not represent, into an error.
    ///
    /// # Panics
    /// If this combination of bits, group size and scales is not supported.
    pub fn from_quantized<E>(
        cpu: Cpu,
        format: QuantizedFormat,
        (shape, is_gated): ([usize; 2], bool),
        pages: &LargePages,
        read: &mut dyn FnMut(usize, Range<usize>) -> Result<QuantizedWeightRows, E>,
        refuse: impl Fn(usize, String) -> E,
    ) -> Result<Self, E> {
        let mut failed = None;
        let mut rows = |matrix, rows| match read(matrix, rows) {
            Ok(rows) => Some(rows),
            Err(error) => {
                failed = Some(error);
                None
            }
        };
        let packed = Self::pack_quantized(cpu, format, (shape, is_gated), pages, &mut rows);
        packed.map_err(|Refused { matrix, reason }| match failed {
            Some(error) => error,
            None => refuse(matrix, reason),
        })
    }

    /// Not generic: the crate of the error's type would compile all packing again, and a debug build without optimization.
    fn pack_quantized(
        cpu: Cpu,
        format: QuantizedFormat,
        (shape, is_gated): ([usize; 2], bool),
        pages: &LargePages,
        read: &mut ReadRows,
    ) -> Result<Self, Refused> {
        let halves = match is_gated {
            true => Halves::GateAndUp,
            false => Halves::One,
        };
        let layout = format.layout();
        macro_rules! packed {
            ($($bits:pat, $scales:pat $(if $condition:expr)? => $storage:ident,)*) => {
                match (format.bits_by_group.0, format.scales) {
                    $(($bits, $scales) $(if $condition)? => {
                        let (memory, layout) = (Aligned::empty_in(pages), (layout, halves));
                        let of = PackedMatrix::from_quantized(memory, cpu, layout, shape, read);
                        of.map(AnyMatrix::$storage)
                    })*
                }
            };
        }
        let packed = packed!(
            2, _ => TwoBits,
            3, _ => ThreeBits,
            4, GroupScales::Microscaled => E2m1,
            4, scales if scales.is_non_linear() => NonLinear,
            4, _ => FourBits,
            5, _ => FiveBits,
            6, _ => SixBits,
            _, _ => Bytes,
        );
        packed.map(Self::from)
    }

    /// Reorders the products' inputs: packed input `i` is multiplied by input `order[i]`. Needed for quantized
    /// weights whose groups are not adjacent inputs.
    ///
    /// # Panics
    /// If the order has another length than the input.
    pub fn with_order(self, order: Option<Arc<[u32]>>) -> Self {
        assert!(
            order
                .as_ref()
                .is_none_or(|order| order.len() == self.d_in())
        );
        Self { order, ..self }
    }

    /// Returns the input width.
    pub fn d_in(&self) -> usize {
        with_matrix!(self, matrix => matrix.rows())
    }

    /// Returns the output width.
    pub fn d_out(&self) -> usize {
        with_matrix!(self, matrix => matrix.columns())
    }

    /// Returns the packed weight's size in bytes.
    pub fn bytes(&self) -> usize {
        with_matrix!(self, matrix => matrix.bytes())
    }

    /// Unpacks one weight row `[d_out, d_in]`, rounded to the format.
    ///
    /// # Panics
    /// If the row does not exist, `to` differs from the input width, or the weight is gated.
    pub fn unpack_row(&self, row: usize, to: &mut [f32]) {
        assert!(row < self.d_out(), "row {row} of {}", self.d_out());
        with_matrix!(self, matrix => matrix.unpack_column(row, to));
        if let Some(order) = &self.order {
            let packed = to.to_vec();
            let weights = packed.into_iter().zip(&**order);
            weights.for_each(|(weight, &at)| to[at as usize] = weight);
        }
    }

    /// Computes `y = epilogue(x · weightᵀ)`. `y` is row-major and contiguous.
    ///
    /// # Panics
    /// If lengths do not match, or the weight was packed for another instruction set.
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

    /// Computes `y = epilogue(hidden · weightᵀ)` with `hidden = up_epilogue(x · upᵀ)`. The hidden rows are packed
    /// directly by the first product, and stay in the cache.
    ///
    /// If the weights have different formats, or this weight reorders its inputs, the hidden rows are written in f32
    /// and packed again, a block at a time.
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
        matching!(F32 F16 Bf16 Int8 TwoBits ThreeBits FourBits E2m1 NonLinear FiveBits SixBits Bytes);
    }

    /// Like [`Self::multiply_hidden`], with f32 hidden rows between the products.
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

/// Hidden rows in memory at a time, if the weights have different formats.
const BETWEEN_ROWS: usize = 512;

/// A linear layer, or two with an epilogue between them.
struct LinearMap<'a, F: Format> {
    cpu: Cpu,
    up: Option<(&'a PackedMatrix<F>, &'a Epilogue<'a, f32>)>,
    down: &'a PackedMatrix<F>,
    x: &'a Source<'a>,
    epilogue: &'a Epilogue<'a, f32>,
    y: Shared<'a, f32>,
}

fn map<F: WithKernel<Element = f32>>(map: LinearMap<F>) {
    map.compute(&*F::kernel(map.cpu.isa));
}

impl<F: Format<Element = f32>> LinearMap<'_, F> {
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

    /// Computes some result rows. No other call computes the same rows.
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

/// Packs rows, with `x`'s norm applied if any, and lends them to `work`.
fn with_packed<F: Format<Element = f32>>(
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
