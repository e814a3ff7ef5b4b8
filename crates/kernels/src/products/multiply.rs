//! Matrix products `y = a·b` with reproducible bits.
//!
//! **Summation order.** Each element of `y` is the sum of `a[i][k] · b[k][j]` over `k`. The products for
//! [`Format::CHUNK`] consecutive `k` are added one by one to a sum that starts at zero, each with one rounding (two
//! on the portable instruction set). The sums of the chunks are added one by one to the first chunk's sum. The
//! epilogue comes last. Other rows, their number, threads and `b`'s packing have no influence. Each row in `y`
//! therefore has the same bits in every product with the same `b` on the same [`Isa`]. Short chains also round less
//! than one long chain: at depth 768 the error is near `√CHUNK + √(768 / CHUNK)` roundings rather than `√768`. This
//! holds for f32 and f64. See [`format`](super::format) for bfloat16 and int8 within a chunk, and
//! [`tiles`](super::tiles) for tile registers.
//!
//! **Loop order.** From the outside in (the loops of BLIS, with `a` in the L2 cache):
//!
//! ```text
//! blocks   rows of `a`, packed together; each thread takes its own, or all share one     blocks.rs
//! tasks    some rows of a block × some panels of `b`, shared by threads                  product.rs
//! panels   PANEL columns of `b` (for few rows, two panels at a time, streams.rs);
//!          a task's totals in one panel stay in the L2 cache                             panel.rs
//! chunks   CHUNK consecutive `k`; a panel's chunk stays in the L1 cache                  panel.rs
//! tiles    ROWS rows × PANEL columns, whose sums of a chunk stay in registers            dot_tile.rs
//! ```
//!
//! After the last chunk, the epilogue converts a tile's totals to results while they are still in the cache, and
//! writes them once: as rows, or packed as the left operand of the next product.

use std::ops::Range;

use half::bf16;

use super::{
    Columns, Epilogue, Format, HIDDEN, Matrix, PACKED, PackedMatrix, PackedRows, Product,
    RowBlocks, To, View, WithKernel, blocks::BLOCK_ROWS, pack_rows::pack_rows,
};
use crate::memory::scratch::{give_back, take};
use crate::vectors::{Slice, SliceMut, Stored};
use crate::{cpu::Cpu, memory::lend, rows::activation::Computed, threads::Target};

/// Optional terms that are added to a product.
#[derive(Clone, Copy, Debug, Default)]
pub struct Added<'a> {
    /// A value per column.
    pub bias: Option<Slice<'a>>,
    /// A residual in the result's shape, row-major and contiguous. Added last. Not supported for half types.
    pub residual: Option<Slice<'a>>,
}

impl<'a> Added<'a> {
    fn epilogue<T: Plain + Stored>(self) -> Epilogue<'a, T> {
        Epilogue {
            residual: self.residual.map(T::of_slice),
            ..Epilogue::bias(self.bias.map(T::of_slice))
        }
    }
}

/// Computes `y = a · b + bias + residual`. `y` is row-major and contiguous. All operands have one type. Half types
/// are widened to f32, and rounded once.
///
/// # Panics
/// If lengths or types do not match, or a half type product has a residual.
pub fn multiply(cpu: Cpu, a: Matrix, b: Matrix, added: Added, y: SliceMut) {
    match y {
        SliceMut::F32(y) => multiply_as_is::<f32>(cpu, a, b, added, y),
        SliceMut::F64(y) => multiply_as_is::<f64>(cpu, a, b, added, y),
        SliceMut::F16(y) => multiply_widened(cpu, a, b, added, y),
        SliceMut::Bf16(y) => multiply_widened(cpu, a, b, added, y),
    }
}

fn multiply_as_is<T: Plain + Stored>(cpu: Cpu, a: Matrix, b: Matrix, added: Added, y: &mut [T]) {
    multiply_views(cpu, a.view(), b.view(), &added.epilogue(), y);
}

/// Like [`multiply`] for f32, with both matrices rounded to bfloat16. Sums, bias and residual are f32.
///
/// # Panics
/// If lengths do not match, or a type is not f32.
pub fn multiply_rounded(cpu: Cpu, a: Matrix, b: Matrix, added: Added, y: SliceMut) {
    let y = Target::row_major(f32::of_slice_mut(y), a.rows, b.columns);
    multiply_packing::<bf16>(cpu, a.view(), b.view(), &added.epilogue(), To::Rows(&y));
}

fn multiply_widened<T: Stored<Acc = f32>>(
    cpu: Cpu,
    a: Matrix,
    b: Matrix,
    added: Added,
    y: &mut [T],
) {
    assert!(
        added.residual.is_none(),
        "products of half types support no residual"
    );
    let (wide_a, wide_b) = (a.widened::<T>(), b.widened::<T>());
    let bias = added.bias.map(|bias| widened(T::of_slice(bias)));
    let mut wide_y = vec![0.0; y.len()];
    let [a, b] =
        [(&wide_a, a), (&wide_b, b)].map(|(wide, of)| View::row_major(wide, of.rows, of.columns));
    multiply_views(cpu, a, b, &Epilogue::bias(bias.as_deref()), &mut wide_y);
    for (y, wide) in y.iter_mut().zip(wide_y) {
        *y = T::narrow(wide);
    }
}

fn widened<T: Stored<Acc = f32>>(numbers: &[T]) -> Vec<f32> {
    numbers.iter().map(|x| x.widen()).collect()
}

/// A format whose words are the values themselves, so that a matrix needs no packing: f32 and f64.
pub trait Plain: Computed + WithKernel + Format<Element = Self, Word = Self> {}

impl Plain for f32 {}
impl Plain for f64 {}

/// Computes `y = epilogue(a · b)` in f32 or f64. `y` is row-major and contiguous.
///
/// # Panics
/// If the lengths do not match.
pub(crate) fn multiply_views<T: Plain>(
    cpu: Cpu,
    a: View<T>,
    b: View<T>,
    epilogue: &Epilogue<T>,
    y: &mut [T],
) {
    let y = Target::row_major(y, a.rows(), b.columns());
    multiply_onto::<T>(cpu, a, b, epilogue, To::Rows(&y));
}

/// Computes `y = y + a · b` in f32 or f64. `y` is row-major and contiguous.
///
/// # Panics
/// If the lengths do not match.
pub(crate) fn add_product<T: Plain>(cpu: Cpu, a: View<T>, b: View<T>, y: &mut [T]) {
    let y = Target::row_major(y, a.rows(), b.columns());
    multiply_onto::<T>(cpu, a, b, &Epilogue::NONE, To::Sums(&y));
}

fn multiply_onto<T: Plain>(cpu: Cpu, a: View<T>, b: View<T>, epilogue: &Epilogue<T>, y: To<T>) {
    if a.rows() > BLOCK_ROWS {
        // Packed once, because each row block would pack `b` again.
        return multiply_packing::<T>(cpu, a, b, epilogue, y);
    }
    multiply_columns::<T>(cpu, Columns::InPlace(b), a, epilogue, y);
}

/// Computes `y = epilogue(a · b)`, with both operands packed for this product.
fn multiply_packing<F: WithKernel>(
    cpu: Cpu,
    a: View<F::Element>,
    b: View<F::Element>,
    epilogue: &Epilogue<F::Element>,
    y: To<F>,
) {
    let b = PackedMatrix::<F>::new_in(take(HIDDEN), cpu, F::Layout::default(), b);
    multiply_columns(cpu, Columns::Packed(&b), a, epilogue, y);
    give_back(HIDDEN, b.into_memory());
}

/// Computes `y = epilogue(a · b)`, with a right operand that is packed already, or read in place.
///
/// # Panics
/// If lengths do not match, or the right operand was packed for another instruction set.
pub(crate) fn multiply_columns<F: WithKernel>(
    cpu: Cpu,
    b: Columns<F>,
    a: View<F::Element>,
    epilogue: &Epilogue<F::Element>,
    y: To<F>,
) {
    let kernel = &*F::kernel(cpu.isa);
    let (depth, columns) = b.shape();
    let product = Product::new((cpu, kernel), b, epilogue, y, a.rows());
    assert_eq!(
        a.columns(),
        depth,
        "the columns of a differ from the rows of b"
    );
    if a.rows() == 0 || columns == 0 {
        // Nothing to write. A matrix without columns may claim any row count.
        return;
    }
    let chunks = kernel.chunks(b.layout());
    let words = |rows| PackedRows::<F::Word>::words(rows, depth, chunks);
    let block = |rows: Range<usize>, threads| {
        let (first_row, n_rows) = (rows.start, rows.len());
        lend(PACKED, words(n_rows), |packed| {
            pack_rows(kernel, chunks, a, rows, packed, threads);
            let packed = PackedRows::new(packed, n_rows, depth, chunks);
            product.on(threads).block(first_row, packed);
        });
    };
    match product.b {
        Columns::Packed(b) => {
            let rows = RowBlocks {
                len: a.rows(),
                per_tile: kernel.rows(),
                blocking: kernel.blocking(),
                row_bytes: words(1) * size_of::<F::Word>(),
                weight_bytes: b.bytes(),
            };
            rows.for_blocks(product.cpu.threads, block);
        }
        // A single block, because each block would pack the columns again.
        Columns::InPlace(_) => block(0..a.rows(), product.cpu.threads),
    }
}
