//! Products of matrices, `y = a·b`, the same bits however they are computed.
//!
//! **The order of addition.** Each element of `y` is a sum over `k` of `a[i][k] · b[k][j]`. The terms
//! of [`Format::CHUNK`] consecutive `k` are added one by one, first to last, to a sum that starts at zero,
//! each with one rounding (two at the portable level); the chunks' sums are added one by one, first
//! to last, to the first chunk's; the epilogue comes last. Nothing else enters: not the other rows
//! or their number, nor the threads, nor whether `b` is packed. So a row of `y` has the same bits in
//! every product with the same `b` at the same [`Isa`]. Short chains also round less than one long
//! one: at a depth of 768 the error is near `√CHUNK + √(768 / CHUNK)` roundings rather than `√768`.
//!
//! **The order of work.** Rows are packed in blocks; tasks of some panels of columns each take a part
//! of the block. Within a task, a panel's chunk stays in the first cache while the tiles of rows go
//! by, and their totals in the second. The results are written once, or packed as the left operand of
//! the next product.

mod blocks;
mod product;
mod sums;

use std::ops::Range;

pub(super) use self::{
    blocks::Rows,
    product::{Columns, Product, To},
};
pub use super::epilogue::{Epilogue, Map, Scale};
use super::{
    arch::Kernels,
    format::{DotTask, Dots, Format},
    isa::Isa,
    pack::PackedMatrix,
    pack_rows::pack_rows,
    rows::{PackedRows, Target},
    scratch::{Aligned, lend},
    view::View,
};

/// Rows that are packed at a time: enough that packing columns for each block costs little, and the
/// working memory stays small.
pub const BLOCK_ROWS: usize = 256;

/// A format whose words are its numbers, so that a matrix can be read where it lies: f32 and f64.
pub trait Plain: Kernels + Format<Number = Self, Word = Self> {}

impl<T: Kernels + Format<Number = T, Word = T>> Plain for T {}

/// `y = epilogue(a · b)` in f32 or f64, row after row without gaps.
///
/// # Panics
/// If the lengths do not fit.
pub fn multiply<T: Plain>(
    isa: Isa,
    a: View<T>,
    b: View<T>,
    epilogue: &Epilogue<T>,
    y: &mut [T],
    threads: usize,
) {
    if a.rows() > BLOCK_ROWS {
        // Each block would pack `b` anew.
        let memory = T::hidden_scratch().replace(Aligned::empty());
        let b = PackedMatrix::<T>::new_in(memory, isa, b, threads);
        b.multiply(a, epilogue, y, threads);
        T::hidden_scratch().set(b.into_memory());
        return;
    }
    let y = Target::row_major(y, a.rows(), b.columns());
    let columns = Columns::InPlace(b);
    let product = Product::<T>::new(columns, epilogue, To::Rows(&y), a.rows(), threads);
    <T as Format>::run(isa, WithRows { product, a });
}

/// As [`multiply`], with a right operand that was packed before, in its format.
pub(super) fn multiply_packed<F: Format>(
    b: &PackedMatrix<F>,
    a: View<F::Number>,
    epilogue: &Epilogue<F::Number>,
    y: &mut [F::Number],
    threads: usize,
) {
    let y = Target::row_major(y, a.rows(), b.columns());
    let columns = Columns::Packed(b);
    let product = Product::new(columns, epilogue, To::Rows(&y), a.rows(), threads);
    F::run(b.isa(), WithRows { product, a });
}

/// A product whose left operand is packed on the way.
struct WithRows<'a, F: Format> {
    product: Product<'a, F>,
    a: View<'a, F::Number>,
}

impl<F: Format> DotTask<F> for WithRows<'_, F> {
    fn run<D: Dots<F>>(self, d: D) {
        let Self { product, a } = self;
        let (depth, _) = product.b.shape();
        assert_eq!(a.columns(), depth, "a has other columns than b has rows");
        if a.rows() == 0 {
            return;
        }
        let words = |rows| PackedRows::<F::Word>::words(rows, depth, D::CHUNKS);
        let block = |rows: Range<usize>, threads| {
            let (first_row, n_rows) = (rows.start, rows.len());
            lend(F::word_scratch(), words(n_rows), |packed| {
                pack_rows(d, a, rows, packed, threads);
                let packed = PackedRows::new(packed, n_rows, depth, D::CHUNKS);
                product.on(threads).block(d, first_row, packed);
            });
        };
        match product.b {
            Columns::Packed(b) => {
                let rows = Rows {
                    len: a.rows(),
                    per_tile: D::ROWS,
                    row_bytes: words(1) * size_of::<F::Word>(),
                    weight_bytes: b.bytes(),
                };
                rows.for_blocks(product.threads, block);
            }
            // Each block would pack the columns anew.
            Columns::InPlace(_) => block(0..a.rows(), product.threads),
        }
    }
}

/// Part `i` of `n` nearly equal parts of `0..len`, the longer ones first.
pub(super) fn part(len: usize, n: usize, i: usize) -> Range<usize> {
    let (least, longer) = (len / n, len % n);
    let start = |i: usize| i * least + i.min(longer);
    start(i)..start(i + 1)
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
