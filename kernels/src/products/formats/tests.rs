//! Products of every format on every level: against sums written out, against f64, and against each other.

use half::{bf16, f16};

use crate::{memory::scratch::{Aligned, lend}, products::{multiply as gemm, dot_tile::{Ahead, DotTile}, format::*, pack_panels::pack_panel, packed_matrix::PackedMatrix, tile::Total, view::View}, reference::normal, vectors::element::Real};

/// A product on one thread, tile by tile.
struct Product<'a, F: Format, S> {
    a: View<'a, F::Number>,
    b: View<'a, S>,
    /// The most rows in a tile.
    rows: usize,
    y: &'a mut [F::Number],
}

impl<F: Format, S: Element<Acc = F::Number>> DotTask<F> for Product<'_, F, S> {
    fn run<D: Dots<F>>(self, d: D) {
        let (m, n, depth) = (self.a.rows(), self.b.columns(), self.b.rows());
        let n_chunks = depth.div_ceil(F::CHUNK).max(1);
        let mut rows = Aligned::zeros(n_chunks * m * D::ROW_WORDS);
        let garbage = |words: &mut [F::Word]| bytemuck::cast_slice_mut(words).fill(0xa5u8);
        garbage(&mut rows);
        pack_chunks(d, self.a, &mut rows);
        let mut panel = Aligned::zeros(panel_words::<F, D>(depth));
        for first_column in (0..n).step_by(D::PANEL) {
            garbage(&mut panel);
            let columns = first_column..n.min(first_column + D::PANEL);
            pack_panel(d, self.b, columns.clone(), &mut panel);
            let mut totals = Aligned::zeros(m * D::PANEL);
            for first_row in (0..m).step_by(self.rows.min(D::ROWS)) {
                let n_rows = (m - first_row).min(self.rows).min(D::ROWS);
                let totals = &mut totals[first_row * D::PANEL..][..n_rows * D::PANEL];
                for chunk in 0..n_chunks {
                    d.run(DotTile {
                        rows: n_rows,
                        depth: (depth - chunk * F::CHUNK).min(F::CHUNK),
                        a: &rows[(chunk * m + first_row) * D::ROW_WORDS..],
                        b: &panel[chunk * F::CHUNK_WORDS * D::PANEL..],
                        ahead: Ahead::Nothing,
                        totals,
                        total: if chunk == 0 {
                            Total::New
                        } else {
                            Total::Running
                        },
                    });
                }
                for (i, totals) in totals.chunks_exact(D::PANEL).enumerate() {
                    self.y[(first_row + i) * n..][columns.clone()]
                        .copy_from_slice(&totals[..columns.len()]);
                }
            }
        }
    }
}

/// `a · b` in tiles of at most so many rows.
fn product<F: Format, S: Element<Acc = F::Number>>(
    isa: Isa,
    a: View<F::Number>,
    b: View<S>,
    rows: usize,
) -> Vec<F::Number> {
    let mut y = vec![F::Number::of(9.0); a.rows() * b.columns()];
    F::run(
        isa,
        Product {
            a,
            b,
            rows,
            y: &mut y,
        },
    );
    y
}

fn random(n: usize, seed: u64) -> Vec<f32> {
    normal(n, 0.1, 1.0, seed)
        .into_iter()
        .map(|x| x as f32)
        .collect()
}

/// The same matrix in other layouts: transposed, with gaps, at odd addresses.
struct Layouts {
    shape: (usize, usize),
    plain: Vec<f32>,
    turned: Vec<f32>,
    gaps: Vec<f32>,
}

impl Layouts {
    fn new(plain: &[f32], rows: usize, columns: usize) -> Self {
        let mut turned = vec![0.0; 1 + rows * columns];
        let mut gaps = vec![f32::NAN; 3 + rows * (2 * columns + 5)];
        for i in 0..rows {
            for j in 0..columns {
                turned[1 + j * rows + i] = plain[i * columns + j];
                gaps[3 + i * (2 * columns + 5) + 2 * j] = plain[i * columns + j];
            }
        }
        Self {
            shape: (rows, columns),
            plain: plain.to_vec(),
            turned,
            gaps,
        }
    }

    fn views(&self) -> [View<'_, f32>; 3] {
        let (rows, columns) = self.shape;
        [
            View::new(&self.plain, self.shape, (columns, 1)),
            View::new(&self.turned[1..], self.shape, (1, rows)),
            View::new(&self.gaps[3..], self.shape, (2 * columns + 5, 2)),
        ]
    }
}

/// One element of a product, in the documented order of addition.
trait WrittenOut: Format<Number = f32> {
    fn element(a: &[f32], w: &[f32]) -> f32;
}

/// Sums of chunks, added in order.
fn total(a: &[f32], w: &[f32], terms: usize, chunk: impl Fn(&[f32], &[f32]) -> f32) -> f32 {
    let chunks = a.chunks(terms).zip(w.chunks(terms));
    let chunks = chunks.map(|(a, w)| chunk(a, w));
    chunks.reduce(|total, sum| total + sum).unwrap_or(0.0)
}

impl WrittenOut for bf16 {
    fn element(a: &[f32], w: &[f32]) -> f32 {
        let round = |x: f32| bf16::from_f32(x).to_f32();
        total(a, w, 256, |a, w| {
            a.chunks(2).zip(w.chunks(2)).fold(0.0, |sum, (a, w)| {
                let second_first = a.iter().zip(w).rev();
                second_first.fold(sum, |sum, (&a, &w)| sum + round(a) * round(w))
            })
        })
    }
}

impl WrittenOut for i8 {
    fn element(a: &[f32], w: &[f32]) -> f32 {
        fn quantised(x: &[f32], step: f32) -> impl Iterator<Item = i64> {
            let per_unit = if step == 0.0 { 0.0 } else { 1.0 / step };
            x.iter()
                .map(move |x| (x * per_unit).round_ties_even() as i64)
        }
        total(a, w, 128, |a, w| {
            let extreme = |of: fn(f32, f32) -> f32| a.iter().copied().fold(0.0, of);
            let row_scale = (extreme(f32::max) - extreme(f32::min)) / 254.0;
            let largest = w.iter().fold(0f32, |largest, w| largest.max(w.abs()));
            // The nearest bfloat16 or the one above that.
            let near = bf16::from_f32(largest / 127.0);
            let is_below = near.to_f32() < largest / 127.0;
            let above = bf16::from_bits(near.to_bits() + u16::from(is_below));
            let column_scale = above.to_f32();
            let products = quantised(a, row_scale).zip(quantised(w, column_scale));
            products.map(|(a, w)| a * w).sum::<i64>() as f32 * row_scale * column_scale
        })
    }
}

const M: &[usize] = if cfg!(miri) {
    &[0, 1, 3]
} else {
    &[0, 1, 2, 3, 4, 5, 13, 14, 15, 29]
};
const N: &[usize] = if cfg!(miri) {
    &[1, 9]
} else {
    &[0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65]
};
const K: &[usize] = if cfg!(miri) {
    &[0, 5, 129]
} else {
    &[
        0, 1, 2, 3, 4, 5, 31, 33, 127, 128, 129, 130, 131, 255, 256, 257, 513,
    ]
};

fn every_size_and_layout<F: WrittenOut>() {
    let largest = M[M.len() - 1];
    for &k in K {
        let all_a = random(largest * k, 1);
        for &n in N {
            let w = random(n * k, 2);
            let element = |i: usize, j: usize| F::element(&all_a[i * k..][..k], &w[j * k..][..k]);
            let all_y: Vec<f32> = (0..largest * n).map(|at| element(at / n, at % n)).collect();
            let weights = Layouts::new(&w, n, k);
            for &m in M {
                let rows = Layouts::new(&all_a[..m * k], m, k);
                for isa in Isa::levels() {
                    for (which, weight) in weights.views().into_iter().enumerate() {
                        for (layout, a) in rows.views().into_iter().enumerate() {
                            let y = product::<F, f32>(isa, a, weight.transposed(), 14);
                            for (at, (y, expected)) in y.iter().zip(&all_y).enumerate() {
                                assert!(
                                    y.to_bits() == expected.to_bits(),
                                    "{} {m}x{n}x{k}, layouts {layout} {which}, element {at}: {y:e}, expected {expected:e}",
                                    isa.name()
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_bf16_sum_has_the_documented_order_on_every_level_in_every_size_and_layout() {
    every_size_and_layout::<bf16>();
}

#[test]
fn every_int8_sum_is_the_documented_one_on_every_level_in_every_size_and_layout() {
    every_size_and_layout::<i8>();
}

/// Tiles of any height give the same bits.
fn heights<F: Format<Number: std::fmt::Debug>>(
    a: &[F::Number],
    w: &[F::Number],
    (m, n, k): (usize, usize, usize),
) {
    let a = View::row_major(a, m, k);
    let b = View::row_major(w, n, k).transposed();
    for isa in Isa::levels() {
        let together = product::<F, _>(isa, a, b, 14);
        for rows in 1..14 {
            assert!(
                product::<F, _>(isa, a, b, rows) == together,
                "{} {rows}",
                isa.name()
            );
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_tiles_of_every_height() {
    let (m, n, k) = if cfg!(miri) {
        (5, 9, 130)
    } else {
        (31, 77, 300)
    };
    let (a, w) = (random(m * k, 5), random(n * k, 6));
    heights::<f32>(&a, &w, (m, n, k));
    heights::<bf16>(&a, &w, (m, n, k));
    heights::<i8>(&a, &w, (m, n, k));
    let wide = |x: &[f32]| x.iter().map(|&x| x.into()).collect::<Vec<f64>>();
    heights::<f64>(&wide(&a), &wide(&w), (m, n, k));
}

#[test]
fn f32_and_f64_have_the_bits_of_the_products_in_place() {
    let (m, n, k) = if cfg!(miri) {
        (5, 9, 130)
    } else {
        (31, 77, 300)
    };
    let (a, w) = (random(m * k, 7), random(n * k, 8));
    fn check<T: gemm::Plain + std::fmt::Debug>(a: &[T], w: &[T], (m, n, k): (usize, usize, usize)) {
        let a = View::row_major(a, m, k);
        let b = View::row_major(w, n, k).transposed();
        for isa in Isa::levels() {
            let mut y = vec![T::ZERO; m * n];
            gemm::multiply(isa, a, b, &gemm::Epilogue::NONE, &mut y, 1);
            assert_eq!(product::<T, T>(isa, a, b, 14), y, "{}", isa.name());
        }
    }
    check(&a, &w, (m, n, k));
    let wide = |x: &[f32]| x.iter().map(|&x| x.into()).collect::<Vec<f64>>();
    check(&wide(&a), &wide(&w), (m, n, k));
}

/// Weights of half types are packed as if they had been widened first.
fn sources<F: Format<Number = f32>>() {
    let (m, n, k) = (3, 35, 131);
    let (a, w) = (random(m * k, 9), random(n * k, 10));
    let a = View::row_major(&a, m, k);
    fn both<F: Format<Number = f32>, S: Element<Acc = f32>>(a: View<f32>, n: usize, w: &[S]) {
        let k = a.columns();
        let wide: Vec<f32> = w.iter().map(|w| w.widen()).collect();
        for isa in Isa::levels() {
            for (shape, strides) in [((k, n), (1, k)), ((k, n), (n, 1)), ((k, n / 2), (n, 2))] {
                let found = product::<F, S>(isa, a, View::new(w, shape, strides), 14);
                let expected = product::<F, f32>(isa, a, View::new(&wide, shape, strides), 14);
                assert_eq!(found, expected, "{} {strides:?}", isa.name());
            }
        }
    }
    both::<F, f16>(
        a,
        n,
        &w.iter().map(|&w| f16::from_f32(w)).collect::<Vec<_>>(),
    );
    both::<F, bf16>(
        a,
        n,
        &w.iter().map(|&w| bf16::from_f32(w)).collect::<Vec<_>>(),
    );
}

#[test]
fn weights_of_half_types_are_packed_as_if_they_had_been_widened() {
    sources::<f32>();
    sources::<bf16>();
    sources::<i8>();
}

#[test]
fn a_product_without_terms_is_zero_whatever_the_memory_held_before() {
    fn check<F: Format<Number = f32>>(isa: Isa) {
        lend(F::word_scratch(), 1 << 12, |words| {
            bytemuck::cast_slice_mut(words).fill(0xffu8) // NaN
        });
        let (a, b) = (View::row_major(&[], 3, 0), View::row_major(&[], 0, 5));
        let mut y = [9.0; 15];
        let packed = PackedMatrix::<F>::new::<f32>(isa, b, 1);
        packed.multiply(a, &gemm::Epilogue::NONE, &mut y, 1);
        assert_eq!(y, [0.0; 15], "{}", isa.name());
    }
    for isa in Isa::levels() {
        check::<f32>(isa);
        check::<bf16>(isa);
        check::<i8>(isa);
    }
}

mod accuracy;
