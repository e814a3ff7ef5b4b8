//! Products against sums written out, against f64, and against themselves under every circumstance
//! that must not show. Every level of instructions runs the same checks.

use super::{
    super::{
        pack::Halves,
        parallel,
        reference::{Rounding, normal},
    },
    *,
};

/// A type with the one rounding that the vector levels have.
trait Number: Kernels + Rounding + Format<Number = Self, Word = Self> {
    fn fused(a: Self, b: Self, c: Self) -> Self;
    fn bits(self) -> u64;
}

macro_rules! number {
    ($type:ty) => {
        impl Number for $type {
            fn fused(a: Self, b: Self, c: Self) -> Self {
                a.mul_add(b, c)
            }
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
        }
    };
}
number!(f32);
number!(f64);

/// One sum in the documented order.
fn sum<T: Number>(isa: Isa, terms: impl Iterator<Item = (T, T)>) -> T {
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

/// `a [m, k]` times the transpose of `w [n, k]`, written out.
fn written_out<T: Number>(isa: Isa, a: &[T], w: &[T], (m, n, k): (usize, usize, usize)) -> Vec<T> {
    let element = |i: usize, j: usize| sum(isa, (0..k).map(|t| (a[i * k + t], w[j * k + t])));
    (0..m * n).map(|at| element(at / n, at % n)).collect()
}

fn random<T: Number>(n: usize, seed: u64) -> Vec<T> {
    let values = normal(n, 0.1, 1.0, seed);
    values.into_iter().map(T::from_f64).collect()
}

/// The same matrix in other places: transposed, with gaps, at odd addresses.
struct Layouts<T> {
    rows: usize,
    columns: usize,
    plain: Vec<T>,
    turned: Vec<T>,
    gaps: Vec<T>,
}

impl<T: Number> Layouts<T> {
    fn new(plain: &[T], rows: usize, columns: usize) -> Self {
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

    fn views(&self) -> [View<'_, T>; 3] {
        let shape = (self.rows, self.columns);
        [
            View::new(&self.plain, shape, (self.columns, 1)),
            View::new(&self.turned[1..], shape, (1, self.rows)),
            View::new(&self.gaps[3..], shape, (2 * self.columns + 5, 2)),
        ]
    }
}

fn product<T: Number>(isa: Isa, a: View<T>, b: View<T>, threads: usize) -> Vec<T> {
    let mut y = vec![T::from_f64(9.0); a.rows() * b.columns()];
    multiply(isa, a, b, &Epilogue::NONE, &mut y, threads);
    y
}

fn packed_product<T: Number>(a: View<T>, b: &PackedMatrix<T>, threads: usize) -> Vec<T> {
    let mut y = vec![T::from_f64(9.0); a.rows() * b.columns()];
    b.multiply(a, &Epilogue::NONE, &mut y, threads);
    y
}

#[track_caller]
fn assert_same<T: Number>(found: &[T], expected: &[T], what: impl FnOnce() -> String) {
    assert_eq!(found.len(), expected.len());
    let differ = |i: &usize| found[*i].bits() != expected[*i].bits();
    let wrong: Vec<usize> = (0..found.len()).filter(differ).collect();
    if let Some(&first) = wrong.first() {
        let (found, expected) = (found[first].to_f64(), expected[first].to_f64());
        let what = what();
        panic!(
            "{what}: {} differ, the first {first}: {found:e}, expected {expected:e}",
            wrong.len()
        );
    }
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

/// Every size around lanes, tiles and chunks, every layout, packed or not.
fn every_size_and_layout<T: Number>() {
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
                        let packed = PackedMatrix::new(isa, b, 1);
                        for (layout, a) in rows.views().into_iter().enumerate() {
                            let what = |how| {
                                format!(
                                    "{} {how} {m}x{n}x{k}, layouts {layout} {which}",
                                    isa.name()
                                )
                            };
                            assert_same(&product(isa, a, b, 1), expected, || what("in place"));
                            assert_same(&packed_product(a, &packed, 1), expected, || {
                                what("packed")
                            });
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

/// The largest error as a share of what is allowed.
///
/// A rounding errs by at most `u` of what is rounded, to either side: by Hoeffding's inequality the
/// errors of a sum exceed `λ` times the root of their squares less often than `2·exp(-λ²/2)`. Here
/// `λ = 4`, once in 1500; since roundings spread over the interval rather than lie at its ends, some
/// 1.5 of the 4 are used. The exact sum, and what each step rounds, are taken in f64.
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
fn errors_against_f64_are_those_of_the_roundings() {
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
            println!(
                "{} {m}x{n}x{k}: {:.0} % of the tolerance",
                isa.name(),
                100.0 * share
            );
            assert!(share <= 1.0, "{} {m}x{n}x{k}: {share}", isa.name());
            assert!(
                share > 0.2 || cfg!(miri),
                "{m}x{n}x{k}: the tolerance proves little ({share})"
            );
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_anywhere_among_others() {
    let (m, n, k) = if cfg!(miri) {
        (6, 9, 130)
    } else {
        (61, 77, 300)
    };
    let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 5), random(n * k, 6));
    let b = View::row_major(&w, n, k).transposed();
    for isa in Isa::levels() {
        let packed = PackedMatrix::new(isa, b, 1);
        let together = product(isa, View::row_major(&a, m, k), b, 2);
        // 17 is prime to both m: every row, each elsewhere.
        let order: Vec<usize> = (0..m).map(|i| (i * 17 + 3) % m).collect();
        let moved: Vec<f32> = order
            .iter()
            .flat_map(|&i| &a[i * k..][..k])
            .copied()
            .collect();
        let moved = product(isa, View::row_major(&moved, m, k), b, 2);
        for (at, &i) in order.iter().enumerate() {
            let row = View::row_major(&a[i * k..][..k], 1, k);
            let expected = &together[i * n..][..n];
            assert_same(&moved[at * n..][..n], expected, || {
                format!("row {i} at {at}")
            });
            assert_same(&product(isa, row, b, 1), expected, || {
                format!("row {i} alone")
            });
            assert_same(&packed_product(row, &packed, 1), expected, || {
                format!("row {i} packed")
            });
        }
    }
}

/// Sizes above the threshold of threads, with one row, few, many, and more than a block.
fn sizes_for_threads() -> Vec<(usize, usize, usize)> {
    if cfg!(miri) {
        return vec![];
    }
    assert!(3 * 1000 * 200 > parallel::worthwhile());
    const { assert!(1024 * 512 > crate::cpu::pack_rows::PACK_PARALLEL_FROM) };
    vec![
        (1, 2000, 300),
        (3, 1000, 200),
        (100, 20, 300),
        (BLOCK_ROWS - 1, 40, 130),
        (BLOCK_ROWS + 1, 40, 500),
        (2 * BLOCK_ROWS + 1, 33, 257),
    ]
}

#[test]
fn the_thread_count_does_not_change_a_bit() {
    for (m, n, k) in sizes_for_threads() {
        let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 7), random(n * k, 8));
        let (a, b) = (
            View::row_major(&a, m, k),
            View::row_major(&w, n, k).transposed(),
        );
        for isa in Isa::levels() {
            let packed = PackedMatrix::new(isa, b, 3);
            let expected = product(isa, a, b, 1);
            for threads in 1..=4 {
                let what = || format!("{} {m}x{n}x{k}, {threads} threads", isa.name());
                assert_same(&product(isa, a, b, threads), &expected, what);
                assert_same(&packed_product(a, &packed, threads), &expected, what);
            }
        }
    }
}

#[test]
fn concurrent_and_nested_callers_get_the_same_bits() {
    use rayon::prelude::*;
    for (m, n, k) in sizes_for_threads() {
        let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 9), random(n * k, 10));
        let (a, b) = (
            View::row_major(&a, m, k),
            View::row_major(&w, n, k).transposed(),
        );
        let isa = Isa::best();
        let packed = PackedMatrix::new(isa, b, 2);
        let expected = product(isa, a, b, 1);
        let check = |how: &str| {
            let what = || format!("{m}x{n}x{k} {how}");
            assert_same(&product(isa, a, b, 3), &expected, what);
            assert_same(&packed_product(a, &packed, 3), &expected, what);
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| check("from threads"));
            }
        });
        (0..6).into_par_iter().for_each(|_| check("within rayon"));
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .build()
            .unwrap();
        pool.install(|| check("within a pool of one"));
    }
}

#[test]
fn nan_and_infinity_spoil_their_row_or_column_and_no_other() {
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
fn the_bias_is_added_once_and_last() {
    let (m, n, k) = (7, 45, 300);
    let (a, w, bias): (Vec<f32>, Vec<f32>, Vec<f32>) =
        (random(m * k, 11), random(n * k, 12), random(n, 13));
    let (a, b) = (
        View::row_major(&a, m, k),
        View::row_major(&w, n, k).transposed(),
    );
    for isa in Isa::levels() {
        let sums = product(isa, a, b, 1).into_iter().enumerate();
        let expected: Vec<f32> = sums.map(|(at, sum)| sum + bias[at % n]).collect();
        let epilogue = Epilogue::bias(Some(&bias));
        let mut y = vec![9.0; m * n];
        multiply(isa, a, b, &epilogue, &mut y, 2);
        assert_same(&y, &expected, || "in place".to_string());
        y.fill(9.0);
        PackedMatrix::<f32>::new(isa, b, 2).multiply(a, &epilogue, &mut y, 2);
        assert_same(&y, &expected, || "packed".to_string());
    }
}

#[test]
fn an_epilogue_is_what_would_be_done_to_the_sums() {
    let square = |values: &mut [f32]| values.iter_mut().for_each(|v| *v = *v * *v);
    for (m, n, k) in [(1, 1, 1), (7, 45, 300), (33, 64, 129), (17, 5, 0)] {
        let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 11), random(n * k, 12));
        let [bias, up_bias, factors]: [Vec<f32>; 3] = [13, 14, 15].map(|seed| random(n, seed));
        let (residual, up): (Vec<f32>, Vec<f32>) = (random(m * n, 16), random(n * k, 17));
        let a = View::row_major(&a, m, k);
        let weight = |w| View::row_major(w, n, k).transposed();
        for isa in Isa::levels() {
            let sums = product(isa, a, weight(&w), 1);
            let ups = product(isa, a, weight(&up), 1);
            for scale in [Scale::One, Scale::Constant(1.5), Scale::Columns(&factors)] {
                for (halves, with_residual) in [
                    (Halves::One, false),
                    (Halves::One, true),
                    (Halves::GateAndUp, false),
                    (Halves::GateAndUp, true),
                ] {
                    let expected: Vec<f32> = (0..m * n)
                        .map(|at| {
                            let column = at % n;
                            let mut y = (sums[at] + bias[column]) * (sums[at] + bias[column]);
                            if halves == Halves::GateAndUp {
                                y *= ups[at] + up_bias[column];
                            }
                            match scale {
                                Scale::One => {}
                                Scale::Constant(factor) => y *= factor,
                                Scale::Columns(factors) => y *= factors[column],
                            }
                            if with_residual { residual[at] + y } else { y }
                        })
                        .collect();
                    let epilogue = Epilogue {
                        bias: Some(&bias),
                        up_bias: Some(&up_bias),
                        activation: Some(&square),
                        scale,
                        residual: with_residual.then_some(&residual[..]),
                    };
                    let matrix: PackedMatrix<f32> = match halves {
                        Halves::One => PackedMatrix::new(isa, weight(&w), 2),
                        Halves::GateAndUp => PackedMatrix::gated_in(
                            Aligned::empty(),
                            isa,
                            weight(&w),
                            weight(&up),
                            2,
                        ),
                    };
                    let mut y = vec![9.0; m * n];
                    matrix.multiply(a, &epilogue, &mut y, 2);
                    assert_same(&y, &expected, || format!("{} {halves:?}", isa.name()));
                }
            }
        }
    }
}

#[test]
fn parts_follow_one_another_and_differ_by_at_most_one() {
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
