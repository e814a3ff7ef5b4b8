//! Matrix products `y = a·b`, with the same bits however they are computed.
//!
//! **The order of addition.** Each element of `y` is a sum over `k` of `a[i][k] · b[k][j]`. The terms of
//! [`Format::CHUNK`] consecutive `k` are added one by one, first to last, to a sum that starts at zero, each
//! with one rounding (two at the portable level); the sums of the chunks are added one by one, first to last,
//! to that of the first; the epilogue comes last. Nothing else enters: neither the other rows or their number,
//! nor the threads, nor whether `b` is packed. So a row of `y` has the same bits in every product with the same
//! `b` at the same [`Isa`]. Short chains also round less than one long chain: at a depth of 768 the error is
//! near `√CHUNK + √(768 / CHUNK)` roundings rather than `√768`. (So much for f32 and f64; what differs within a
//! chunk of bfloat16 or int8 is said in [`format`](super::format).)
//!
//! **The order of work.** From the outside in (the loops of BLIS, with `a` in the second-level cache):
//!
//! ```text
//! blocks   rows of `a`, packed together; each thread takes its own, or all share one     blocks.rs
//! tasks    parts of a block's rows × some panels of `b`'s columns, shared by threads      product.rs
//! panels   PANEL columns of `b` (for a row or two, two panels at a time, streams.rs);
//!          a part's totals in one panel stay in the L2 cache                              sums.rs
//! chunks   CHUNK terms of the depth; a panel's chunk stays in the L1 cache                sums.rs
//! tiles    ROWS rows × PANEL columns, whose sums of a chunk stay in registers             dot_tile.rs
//! ```
//!
//! Behind the last chunk, the epilogue turns a tile's totals into results while they are still in the cache,
//! and writes them once: as rows, or packed as the left operand of the next product.

mod blocks;
mod product;
mod streams;
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

/// The most rows that are packed at a time where threads share them: enough to amortise reading the right
/// operand once per block, few enough to keep the working memory small. With more rows than this, an unpacked
/// right operand is packed as a whole first.
pub const BLOCK_ROWS: usize = 256;

/// A format whose words are its numbers, so that a matrix can be read where it lies: f32 and f64.
pub trait Plain: Kernels + Format<Number = Self, Word = Self> {}

impl<T: Kernels + Format<Number = T, Word = T>> Plain for T {}

/// `y = epilogue(a · b)` in f32 or f64; `y` is row-major without gaps.
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
        // Packed once: each block of rows would otherwise pack `b` again.
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

/// As [`multiply`], with a right operand packed in advance, in that operand's format.
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
        let (depth, columns) = product.b.shape();
        assert_eq!(a.columns(), depth, "a has other columns than b has rows");
        if a.rows() == 0 || columns == 0 {
            // Nothing to write, though of rows without elements there may be any number.
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
            // A single block, since each would pack the columns again.
            Columns::InPlace(_) => block(0..a.rows(), product.threads),
        }
    }
}

/// Part `i` when `0..len` is divided into `n` nearly equal parts, the longer ones first.
pub(super) fn part(len: usize, n: usize, i: usize) -> Range<usize> {
    let (least, longer) = (len / n, len % n);
    let start = |i: usize| i * least + i.min(longer);
    start(i)..start(i + 1)
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
