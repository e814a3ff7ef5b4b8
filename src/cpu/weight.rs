//! The packed weight of a linear map in one of several number formats, and the products it takes part in.
//!
//! This is where a format chosen at run time becomes a type parameter.

use std::ops::Range;

use half::bf16;

use super::{
    format::{DotTask, Dots, Format},
    gemm::{Columns, Epilogue, Product, Rows, To},
    isa::Isa,
    large_pages::LargePages,
    pack::PackedMatrix,
    pack_rows::PackRow,
    parallel::Shared,
    rows::{PackedRows, PackedTarget, Target},
    scratch::{Aligned, lend},
    source::Source,
    view::View,
};

/// The format that weights are stored and multiplied in. Sums, and everything between products, are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// f32, unchanged.
    F32,
    /// bfloat16, 16 bits each; see [`super::format::bf16`].
    Bf16,
    /// int8, with a scale for each chunk of each row of the weight; see [`super::format::int8`].
    Int8,
}

/// The packed weight `[d_out, d_in]` of a linear map, or the two of a gated one, whose results are multiplied.
pub enum PackedWeight {
    /// In f32.
    F32(PackedMatrix<f32>),
    /// In bf16.
    Bf16(PackedMatrix<bf16>),
    /// In int8.
    Int8(PackedMatrix<i8>),
}

/// Runs `$body` with `$matrix` bound to the packed matrix of whichever format.
macro_rules! with_matrix {
    ($weight:expr, $matrix:ident => $body:expr) => {
        match $weight {
            PackedWeight::F32($matrix) => $body,
            PackedWeight::Bf16($matrix) => $body,
            PackedWeight::Int8($matrix) => $body,
        }
    };
}

/// Packs a weight of a format chosen at run time: `$pack` uses `$memory`, which comes from `$pages`.
macro_rules! in_format {
    ($format:expr, $pages:expr, $memory:ident => $pack:expr) => {
        in_format!($format, $pages, $memory => $pack; F32 Bf16 Int8)
    };
    ($format:expr, $pages:expr, $memory:ident => $pack:expr; $($storage:ident)*) => {
        match $format {
            $(WeightFormat::$storage => {
                let $memory = Aligned::empty_in($pages);
                PackedWeight::$storage($pack)
            })*
        }
    };
}

impl PackedWeight {
    /// Packs a weight `[d_out, d_in]` into memory from `pages`.
    pub fn new(
        format: WeightFormat,
        isa: Isa,
        weight: View<f32>,
        threads: usize,
        pages: &LargePages,
    ) -> Self {
        let b = weight.transposed();
        in_format!(format, pages, memory => PackedMatrix::new_in(memory, isa, b, threads))
    }

    /// Packs the two weights of a gated feed-forward, each `[d_out, d_in]`, into memory from `pages`.
    pub fn gated(
        format: WeightFormat,
        isa: Isa,
        gate: View<f32>,
        up: View<f32>,
        threads: usize,
        pages: &LargePages,
    ) -> Self {
        let (gate, up) = (gate.transposed(), up.transposed());
        in_format!(format, pages, memory => PackedMatrix::gated_in(memory, isa, gate, up, threads))
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

    /// `y = epilogue(x · weightᵀ)`; `y` is row-major without gaps.
    pub fn multiply(&self, x: &Source, epilogue: &Epilogue<f32>, y: &mut [f32], threads: usize) {
        assert_eq!(y.len(), x.rows() * self.d_out());
        with_matrix!(self, matrix => run(LinearMap {
            up: None,
            down: matrix,
            x,
            epilogue,
            y: Shared::new(y),
            threads,
        }));
    }

    /// `y = epilogue(hidden · weightᵀ)` with `hidden = up_epilogue(x · upᵀ)`, which is packed as it is computed
    /// and stays in the cache.
    ///
    /// # Panics
    /// If the two weights are stored in different formats.
    pub fn multiply_hidden(
        &self,
        (up, up_epilogue): (&Self, &Epilogue<f32>),
        x: &Source,
        epilogue: &Epilogue<f32>,
        y: &mut [f32],
        threads: usize,
    ) {
        assert_eq!(y.len(), x.rows() * self.d_out());
        macro_rules! matching {
            ($($storage:ident)*) => {
                match (up, self) {
                    $((Self::$storage(up), Self::$storage(down)) => run(LinearMap {
                        up: Some((up, up_epilogue)),
                        down,
                        x,
                        epilogue,
                        y: Shared::new(y),
                        threads,
                    }),)*
                    _ => panic!("weights of different formats"),
                }
            };
        }
        matching!(F32 Bf16 Int8);
    }
}

/// One linear map, or two with an epilogue between them.
struct LinearMap<'a, F: Format> {
    up: Option<(&'a PackedMatrix<F>, &'a Epilogue<'a, f32>)>,
    down: &'a PackedMatrix<F>,
    x: &'a Source<'a>,
    epilogue: &'a Epilogue<'a, f32>,
    y: Shared<'a, f32>,
    threads: usize,
}

fn run<F: Format<Number = f32>>(map: LinearMap<F>) {
    F::run(map.down.isa(), map);
}

impl<F: Format<Number = f32>> DotTask<F> for LinearMap<'_, F> {
    fn run<D: Dots<F>>(self, d: D) {
        let row_words = |columns| PackedRows::<F::Word>::words(1, columns, D::CHUNKS);
        let hidden = self.up.map_or(0, |(up, _)| row_words(up.columns()));
        let rows = Rows {
            len: self.x.rows(),
            per_tile: D::ROWS,
            row_bytes: (row_words(self.x.width()) + hidden) * size_of::<F::Word>(),
            weight_bytes: self.down.bytes(),
        };
        rows.for_blocks(self.threads, |rows, threads| self.block(d, rows, threads));
    }
}

impl<F: Format<Number = f32>> LinearMap<'_, F> {
    /// Computes some rows of the result, which no other call computes.
    fn block<D: Dots<F>>(&self, d: D, rows: Range<usize>, threads: usize) {
        let Self {
            up, down, epilogue, ..
        } = *self;
        let (n_rows, columns) = (rows.len(), down.columns());
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
        let to = To::Rows(&y);
        let product = Product::new(Columns::Packed(down), &epilogue, to, n_rows, threads);
        let Some((up, up_epilogue)) = up else {
            return with_packed(d, down.isa(), &x, threads, |x| product.block(d, 0, x));
        };
        let d_ff = up.columns();
        let words = PackedRows::<F::Word>::words(n_rows, d_ff, D::CHUNKS);
        lend(F::hidden_scratch(), words, |hidden| {
            let to = PackedTarget::new(hidden, n_rows, d_ff, D::CHUNKS);
            let (columns, to) = (Columns::Packed(up), To::Operand(&to));
            let up_product = Product::new(columns, up_epilogue, to, n_rows, threads);
            with_packed(d, up.isa(), &x, threads, |x| up_product.block(d, 0, x));
            product.block(d, 0, PackedRows::new(hidden, n_rows, d_ff, D::CHUNKS));
        });
    }
}

/// Packs rows, normalised if so asked, and lends them to `work`.
fn with_packed<F: Format<Number = f32>, D: Dots<F>>(
    d: D,
    isa: Isa,
    x: &Source,
    threads: usize,
    work: impl FnOnce(PackedRows<F::Word>),
) {
    let (rows, width) = (x.rows(), x.width());
    let words = PackedRows::<F::Word>::words(rows, width, D::CHUNKS);
    lend(F::word_scratch(), words, |packed| {
        let to = PackedTarget::new(packed, rows, width, D::CHUNKS);
        x.for_rows(isa, threads, |i, row| {
            // SAFETY: `for_rows` gives out each row once.
            d.run(unsafe { PackRow::<F>::new(row, i, &to) });
        });
        work(PackedRows::new(packed, rows, width, D::CHUNKS));
    });
}
