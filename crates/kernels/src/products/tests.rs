//! Products compared with sums written out, and with f64. Every instruction set runs the same checks.

mod epilogue;
mod pairs;
mod quantized;
mod same_bits;
mod sums;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod weights;

use super::multiply::multiply_views as multiply;
use super::{
    Columns, Epilogue, Halves, Matrix, PackedMatrix, Plain, Scale, To, View, WithKernel,
    blocks::BLOCK_ROWS,
};
use crate::reference::{self, RoundingErrors, assert_same, assert_share, on};
use crate::rows::activation::{ActivationFunction, Computed};
use crate::threads::{
    Target,
    parallel::{self, part},
};
use crate::{cpu::Cpu, memory::Aligned, vectors::Isa, vectors::Stored};

/// A float type with a scalar fused multiply-add.
trait Float: Plain + Computed + RoundingErrors {
    fn fused(a: Self, b: Self, c: Self) -> Self;
}

impl Float for f32 {
    fn fused(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Float for f64 {
    fn fused(a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }
}

/// Returns one product element, summed in the documented order.
fn sum<T: Float>(isa: Isa, terms: impl Iterator<Item = (T, T)>) -> T {
    let terms: Vec<_> = terms.collect();
    let mut total = T::ZERO;
    for (i, chunk) in terms.chunks(128).enumerate() {
        let mut sum = T::ZERO;
        for &(a, b) in chunk {
            sum = if matches!(isa, Isa::Portable(_)) {
                a * b + sum
            } else {
                T::fused(a, b, sum)
            };
        }
        total = if i == 0 { sum } else { total + sum };
    }
    total
}

/// Returns the product `a [m, k]` times the transposed `w [n, k]`, written out.
fn written_out<T: Float>(isa: Isa, a: &[T], w: &[T], (m, n, k): (usize, usize, usize)) -> Vec<T> {
    let element = |i: usize, j: usize| sum(isa, (0..k).map(|t| (a[i * k + t], w[j * k + t])));
    (0..m * n).map(|at| element(at / n, at % n)).collect()
}

fn random<T: Float>(n: usize, seed: u64) -> Vec<T> {
    reference::random(n, 0.1, 1.0, seed)
}

/// The same matrix in other layouts: transposed, with gaps, at odd addresses.
pub(super) struct Layouts<T> {
    rows: usize,
    columns: usize,
    plain: Vec<T>,
    turned: Vec<T>,
    gaps: Vec<T>,
}

impl<T: RoundingErrors> Layouts<T> {
    pub fn new(plain: &[T], rows: usize, columns: usize) -> Self {
        let mut turned = vec![T::ZERO; 1 + rows * columns];
        let mut gaps = vec![T::from_f64(f64::NAN); 3 + rows * (2 * columns + 5)];
        for i in 0..rows {
            for j in 0..columns {
                turned[1 + j * rows + i] = plain[i * columns + j];
                gaps[3 + i * (2 * columns + 5) + 2 * j] = plain[i * columns + j];
            }
        }
        Self {
            rows,
            columns,
            plain: plain.to_vec(),
            turned,
            gaps,
        }
    }

    pub fn views(&self) -> [View<'_, T>; 3] {
        let shape = (self.rows, self.columns);
        [
            View::new(&self.plain, shape, (self.columns, 1)),
            View::new(&self.turned[1..], shape, (1, self.rows)),
            View::new(&self.gaps[3..], shape, (2 * self.columns + 5, 2)),
        ]
    }

    pub fn matrices(&self) -> [Matrix<'_>; 3]
    where
        T: Stored,
    {
        let shape = (self.rows, self.columns);
        [
            Matrix::new(T::slice(&self.plain), shape, (self.columns, 1)),
            Matrix::new(T::slice(&self.turned[1..]), shape, (1, self.rows)),
            Matrix::new(T::slice(&self.gaps[3..]), shape, (2 * self.columns + 5, 2)),
        ]
    }
}

/// Writes a product to contiguous rows.
pub(crate) fn multiply_columns<F: WithKernel>(
    cpu: Cpu,
    b: Columns<F>,
    a: View<F::Element>,
    epilogue: &Epilogue<F::Element>,
    y: &mut [F::Element],
) {
    let y = Target::row_major(y, a.rows(), b.shape().1);
    super::multiply::multiply_columns(cpu, b, a, epilogue, To::Rows(&y));
}

fn product<T: Float>(isa: Isa, a: View<T>, b: View<T>, threads: usize) -> Vec<T> {
    let mut y = vec![T::from_f64(9.0); a.rows() * b.columns()];
    multiply(on(isa, threads), a, b, &Epilogue::NONE, &mut y);
    y
}

fn packed_product<T: Float>(a: View<T>, b: &PackedMatrix<T>, threads: usize) -> Vec<T> {
    let mut y = vec![T::from_f64(9.0); a.rows() * b.columns()];
    multiply_columns(
        on(b.isa(), threads),
        Columns::Packed(b),
        a,
        &Epilogue::NONE,
        &mut y,
    );
    y
}

const M: &[usize] = if cfg!(miri) {
    &[0, 1, 5]
} else {
    &[0, 1, 2, 3, 4, 5, 6, 7, 13, 14, 15, 29]
};
const N: &[usize] = if cfg!(miri) {
    &[0, 1, 9]
} else {
    &[0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65]
};
const K: &[usize] = if cfg!(miri) {
    &[0, 1, 5, 129]
} else {
    &[
        0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 127, 128, 129, 255, 256, 257,
    ]
};

/// Sizes around every lane, tile and chunk, in every layout, packed or not.
fn every_size_and_layout<T: Float>() {
    let largest = M[M.len() - 1];
    for isa in Isa::levels() {
        for &k in K {
            let all_a: Vec<T> = random(largest * k, 1);
            for &n in N {
                let w: Vec<T> = random(n * k, 2);
                let all_y = written_out(isa, &all_a, &w, (largest, n, k));
                let weights = Layouts::new(&w, n, k);
                for &m in M {
                    let rows = Layouts::new(&all_a[..m * k], m, k);
                    let expected = &all_y[..m * n];
                    for (which, weight) in weights.views().into_iter().enumerate() {
                        let b = weight.transposed();
                        let packed = PackedMatrix::new(on(isa, 1), b);
                        for (layout, a) in rows.views().into_iter().enumerate() {
                            let what = format_args!("{isa} {m}x{n}x{k}, layouts {layout} {which}");
                            assert_same(&product(isa, a, b, 1), expected, what);
                            assert_same(&packed_product(a, &packed, 1), expected, what);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_f32_sum_has_the_documented_order_in_every_size_and_layout() {
    every_size_and_layout::<f32>();
}

#[test]
fn every_f64_sum_has_the_documented_order_in_every_size_and_layout() {
    every_size_and_layout::<f64>();
}

#[test]
fn any_number_of_rows_without_elements_takes_no_time() {
    let none: &[f32] = &[];
    let (a, b) = (
        View::new(none, (usize::MAX, 0), (0, 1)),
        View::row_major(none, 0, 0),
    );
    for isa in Isa::levels() {
        multiply(on(isa, 2), a, b, &Epilogue::NONE, &mut []);
    }
}

/// Returns the largest error relative to the tolerance.
///
/// A rounding's error is at most `u` relative to the rounded value, with either sign. By Hoeffding's inequality a
/// sum's errors exceed `λ` times the root of their squares less often than `2·exp(-λ²/2)`. With `λ = 4` that is once
/// in
/// 1500. Roundings spread over the interval rather than lie at its ends, so that some 1.5 of the 4 are used. The
///       exact sum,
/// and the values before each rounding, are computed in f64.
fn share_of_error(isa: Isa, (m, n, k): (usize, usize, usize)) -> f64 {
    let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 3), random(n * k, 4));
    let (a_view, b) = (
        View::row_major(&a, m, k),
        View::row_major(&w, n, k).transposed(),
    );
    let y = product(isa, a_view, b, 2);
    let unit = f64::from(f32::EPSILON) / 2.0;
    let mut worst: f64 = 0.0;
    for (at, y) in y.iter().enumerate() {
        let (i, j) = (at / n, at % n);
        let (mut total, mut squares) = (0.0, 0.0);
        for chunk in (0..k).collect::<Vec<_>>().chunks(128) {
            let mut sum = 0.0;
            for t in chunk {
                let term = f64::from(a[i * k + t]) * f64::from(w[j * k + t]);
                sum += term;
                squares += sum * sum;
                if matches!(isa, Isa::Portable(_)) {
                    squares += term * term;
                }
            }
            total += sum;
            squares += total * total;
        }
        worst = worst.max((f64::from(*y) - total).abs() / (4.0 * unit * squares.sqrt()));
    }
    worst
}

#[test]
fn errors_against_f64_are_within_rounding() {
    let sizes = if cfg!(miri) {
        vec![(3, 5, 140)]
    } else {
        vec![
            (20, 50, 60),
            (16, 80, 384),
            (13, 100, 768),
            (8, 60, 3072),
            (9, 70, 2001),
        ]
    };
    for isa in Isa::levels() {
        for &(m, n, k) in &sizes {
            let share = share_of_error(isa, (m, n, k));
            assert_share(share, 0.2, format_args!("{isa} {m}x{n}x{k}"));
        }
    }
}

#[test]
fn nan_and_infinity_affect_only_their_row_or_column() {
    let (m, n, k) = (5, 37, 131);
    for isa in Isa::levels() {
        for (bad, spoilt) in [(f32::NAN, f32::NAN), (f32::INFINITY, f32::INFINITY)] {
            let (a, w) = (vec![1f32; m * k], vec![1f32; n * k]);
            let check = |a: &[f32], w: &[f32], is_bad: &dyn Fn(usize, usize) -> bool| {
                let b = View::row_major(w, n, k).transposed();
                let y = product(isa, View::row_major(a, m, k), b, 1);
                for (at, y) in y.into_iter().enumerate() {
                    let expected = if is_bad(at / n, at % n) {
                        spoilt
                    } else {
                        k as f32
                    };
                    assert!(
                        y == expected || y.is_nan() && expected.is_nan(),
                        "{at}: {y}"
                    );
                }
            };
            let mut spoilt_a = a.clone();
            spoilt_a[3 * k + 130] = bad;
            check(&spoilt_a, &w, &|i, _| i == 3);
            let mut spoilt_w = w.clone();
            spoilt_w[36 * k + 1] = bad;
            check(&a, &spoilt_w, &|_, j| j == 36);
        }
        let zero_times_infinity = product(
            isa,
            View::row_major(&[0f32, 1.0], 1, 2),
            View::row_major(&[f32::INFINITY, 1.0], 2, 1),
            1,
        );
        assert!(zero_times_infinity[0].is_nan());
    }
}

#[test]
fn parts_are_consecutive_and_differ_in_length_by_at_most_one() {
    for len in 0..40 {
        for n in 1..20 {
            let parts: Vec<_> = (0..n).map(|i| part(len, n, i)).collect();
            assert_eq!((parts[0].start, parts[n - 1].end), (0, len));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(
                parts
                    .iter()
                    .all(|p| p.len() == len / n || p.len() == len.div_ceil(n))
            );
        }
    }
}
