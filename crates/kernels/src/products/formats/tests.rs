//! Products in every format on every instruction set, compared with sums written out, with f64, and with each other.

use half::{bf16, f16};

use super::{group_scales::ScaleLayout, int4_search, quantized::Quantized};
use crate::memory::{Aligned, lend};
use crate::products::{
    Added, Ahead, Columns, DotTiles, Epilogue, Format, PACKED, PackedMatrix, Plain, Total, Totals,
    View, Widen, WithKernel, multiply_rounded, multiply_views,
    pack_panels::pack_panel,
    pack_rows::pack_rows,
    panel::for_tiles,
    tests::{Layouts, multiply_columns},
};
use crate::reference::{self, assert_same, assert_share, on};
use crate::timing::least;
use crate::vectors::{Isa, Real};

/// Computes `a · b` on one thread, in tiles with a given maximum height.
fn product<F: WithKernel>(
    (isa, layout): (Isa, F::Layout),
    a: View<F::Element>,
    b: View<F::Element>,
    rows: usize,
) -> Vec<F::Element> {
    let kernel = &*F::kernel(isa);
    let (m, n, depth) = (a.rows(), b.columns(), b.rows());
    let (width, chunks) = (kernel.panel(), kernel.chunks(layout));
    let row_words = chunks.words;
    let rows = rows.min(kernel.rows());
    let n_chunks = depth.div_ceil(F::CHUNK).max(1);
    let mut y = vec![F::Element::of(9.0); m * n];
    let mut packed = Aligned::zeros(n_chunks * m * row_words);
    let garbage = |words: &mut [F::Word]| bytemuck::cast_slice_mut(words).fill(0xa5u8);
    garbage(&mut packed);
    if m > 0 {
        pack_rows(kernel, chunks, a, 0..m, &mut packed, 1);
    }
    let mut panel = Aligned::zeros(F::column_words(layout, depth) * width);
    let mut to = Aligned::zeros(kernel.widened().all());
    for first_column in (0..n).step_by(width) {
        garbage(&mut panel);
        garbage(&mut to);
        let columns = first_column..n.min(first_column + width);
        pack_panel(kernel, layout, b, columns.clone(), &mut panel);
        kernel.arrange(&mut panel);
        let mut totals = Aligned::zeros(m * width);
        for first_row in (0..m).step_by(rows) {
            let n_rows = (m - first_row).min(rows);
            let totals = &mut totals[first_row * width..][..n_rows * width];
            // As packed, and widened for many tiles.
            let [packed_totals, widened_totals] = [1, 1 << 20].map(|n_tiles| {
                kernel.with_tiles(n_rows, &mut || {
                    for chunk in 0..n_chunks {
                        let words = &panel[chunk * F::chunk_words(layout, F::CHUNK) * width..];
                        let depth = (depth - chunk * F::CHUNK).min(F::CHUNK);
                        let words = &words[..F::chunk_words(layout, depth) * width];
                        let (scales, values) =
                            words.split_at(F::scale_words(layout, depth) * width);
                        let b = Widen {
                            scales,
                            values,
                            depth,
                            layout,
                            to: &mut to,
                        };
                        kernel.multiply(DotTiles {
                            rows: n_rows,
                            depth,
                            a: &packed[(chunk * m + first_row) * row_words..],
                            layout,
                            b: for_tiles(kernel, n_tiles, b),
                            ahead: Ahead::NOTHING,
                            totals: Totals::contiguous(&mut *totals, width),
                            total: Total::New.of_chunk(chunk),
                        });
                    }
                });
                totals.to_vec()
            });
            assert_eq!(
                bytemuck::cast_slice::<_, u8>(&packed_totals),
                bytemuck::cast_slice::<_, u8>(&widened_totals)
            );
            for (i, totals) in totals.chunks_exact(width).enumerate() {
                y[(first_row + i) * n..][columns.clone()].copy_from_slice(&totals[..columns.len()]);
            }
        }
    }
    y
}

/// int4's group sizes.
const GROUPS: [usize; 3] = [32, 64, 128];

fn random(n: usize, seed: u64) -> Vec<f32> {
    reference::random(n, 0.1, 1.0, seed)
}

/// A product element, in the instruction set's documented summation order.
trait WrittenOut: WithKernel<Element = f32> {
    fn element(isa: Isa, layout: Self::Layout, a: &[f32], w: &[f32]) -> f32;
}

/// Adds chunk sums in order.
fn total(a: &[f32], w: &[f32], terms: usize, chunk: impl Fn(&[f32], &[f32]) -> f32) -> f32 {
    let chunks = a.chunks(terms).zip(w.chunks(terms));
    let chunks = chunks.map(|(a, w)| chunk(a, w));
    chunks.reduce(|total, sum| total + sum).unwrap_or(0.0)
}

impl WrittenOut for bf16 {
    fn element(isa: Isa, (): (), a: &[f32], w: &[f32]) -> f32 {
        let round = |x: f32| bf16::from_f32(x).to_f32();
        if isa.name() == "neon_bf16" {
            return total(a, w, 256, |a, w| {
                let pairs = a.chunks(2).zip(w.chunks(2));
                pairs.fold(0.0, |sum, (a, w)| {
                    let pair = |x: &[f32]| [round(x[0]), x.get(1).map_or(0.0, |&x| round(x))];
                    bfdot(sum, pair(a), pair(w))
                })
            });
        }
        if matches!(isa.name(), "amx" | "amx_emulated") {
            let chain = |a: &[f32], w: &[f32], first: usize| {
                let terms = a.iter().zip(w).skip(first).step_by(2);
                terms.fold(0.0, |sum, (&a, &w)| sum + round(a) * round(w))
            };
            let steps = a.chunks(32).zip(w.chunks(32));
            return steps.fold(0.0, |sum, (a, w)| sum + (chain(a, w, 0) + chain(a, w, 1)));
        }
        total(a, w, 256, |a, w| {
            a.chunks(2).zip(w.chunks(2)).fold(0.0, |sum, (a, w)| {
                let second_first = a.iter().zip(w).rev();
                second_first.fold(sum, |sum, (&a, &w)| sum + round(a) * round(w))
            })
        })
    }
}

impl WrittenOut for i8 {
    fn element(_: Isa, (): (), a: &[f32], w: &[f32]) -> f32 {
        fn quantized(x: &[f32], step: f32) -> impl Iterator<Item = i64> {
            let per_unit = if step == 0.0 { 0.0 } else { 1.0 / step };
            x.iter()
                .map(move |x| (x * per_unit).round_ties_even() as i64)
        }
        total(a, w, 128, |a, w| {
            let extreme = |of: fn(f32, f32) -> f32| a.iter().copied().fold(0.0, of);
            let row_scale = (extreme(f32::max) - extreme(f32::min)) / 254.0;
            let largest = w.iter().fold(0f32, |largest, w| largest.max(w.abs()));
            // The nearest bfloat16, or the next one above.
            let near = bf16::from_f32(largest / 127.0);
            let is_below = near.to_f32() < largest / 127.0;
            let above = bf16::from_bits(near.to_bits() + u16::from(is_below));
            let column_scale = above.to_f32();
            let products = quantized(a, row_scale).zip(quantized(w, column_scale));
            products.map(|(a, w)| a * w).sum::<i64>() as f32 * row_scale * column_scale
        })
    }
}

impl WrittenOut for Quantized<4> {
    fn element(_: Isa, scales: ScaleLayout, a: &[f32], w: &[f32]) -> f32 {
        total(a, w, scales.part, |a, w| {
            let largest = a.iter().fold(0f32, |largest, a| largest.max(a.abs()));
            let step = largest / 127.0;
            let per_unit = if step == 0.0 { 0.0 } else { 1.0 / step };
            let integers = a.iter().map(|a| (a * per_unit).round_ties_even() as i64);
            let integers: Vec<i64> = integers.collect();
            let group = int4_search::quantize::<32>(w);
            let products = integers.iter().zip(group.values);
            let products: i64 = products.map(|(&n, q)| n * i64::from(q)).sum();
            let row_sum = step * integers.iter().sum::<i64>() as f32;
            products as f32 * step * group.scale.to_f32() + row_sum * group.minimum.to_f32()
        })
    }
}

const M: &[usize] = if cfg!(miri) {
    &[0, 1, 3]
} else {
    &[0, 1, 2, 3, 4, 5, 13, 14, 15, 16, 17, 29]
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

const SIZE: (usize, usize, usize) = if cfg!(miri) {
    (5, 9, 130)
} else {
    (31, 77, 300)
};

fn every_size_and_layout<F: WrittenOut>(stored: F::Layout) {
    let largest = M[M.len() - 1];
    for &k in K {
        let all_a = random(largest * k, 1);
        for &n in N {
            let w = random(n * k, 2);
            let (row, column) = (|i: usize| &all_a[i * k..][..k], |j: usize| &w[j * k..][..k]);
            let all_y = |isa: Isa| -> Vec<f32> {
                let places = (0..largest * n).map(|at| (at / n, at % n));
                places
                    .map(|(i, j)| F::element(isa, stored, row(i), column(j)))
                    .collect()
            };
            let all_y: Vec<(Isa, Vec<f32>)> = Isa::levels()
                .into_iter()
                .map(|isa| (isa, all_y(isa)))
                .collect();
            let weights = Layouts::new(&w, n, k);
            for &m in M {
                let rows = Layouts::new(&all_a[..m * k], m, k);
                for (isa, all_y) in &all_y {
                    let isa = *isa;
                    for (which, weight) in weights.views().into_iter().enumerate() {
                        for (layout, a) in rows.views().into_iter().enumerate() {
                            let y = product::<F>((isa, stored), a, weight.transposed(), 16);
                            let what = format_args!("{isa} {m}x{n}x{k}, layouts {layout} {which}");
                            assert_same(&y, &all_y[..y.len()], what);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_bf16_sum_has_the_documented_order_on_every_level_in_every_size_and_layout() {
    every_size_and_layout::<bf16>(());
}

#[test]
fn every_int8_sum_has_the_documented_order_on_every_level_in_every_size_and_layout() {
    every_size_and_layout::<i8>(());
}

#[test]
fn every_int4_sum_has_the_documented_order_on_every_level_in_every_size_and_layout() {
    for group in GROUPS {
        every_size_and_layout::<Quantized<4>>(ScaleLayout::int4(group));
    }
}

#[test]
fn every_f16_product_has_the_bits_of_the_f32_product_of_the_rounded_weights() {
    for &k in K {
        let (a, w) = (random(M[M.len() - 1] * k, 1), random(N[N.len() - 1] * k, 2));
        // Some weights are subnormal.
        let small = w.iter().enumerate().map(|(i, w)| match i % 5 {
            0 => w * 1e-5,
            _ => *w,
        });
        let w: Vec<f32> = small.collect();
        let rounded: Vec<f32> = w.iter().map(|&w| f16::from_f32(w).to_f32()).collect();
        for &n in N {
            let exact = View::row_major(&rounded[..n * k], n, k).transposed();
            let weights = Layouts::new(&w[..n * k], n, k);
            for &m in M {
                let rows = Layouts::new(&a[..m * k], m, k);
                let one = View::row_major(&a[..m * k], m, k);
                for isa in Isa::levels() {
                    let expected = product::<f32>((isa, ()), one, exact, 14);
                    for weight in weights.views() {
                        for (layout, a) in rows.views().into_iter().enumerate() {
                            let y = product::<f16>((isa, ()), a, weight.transposed(), 14);
                            assert_same(&y, &expected, format_args!("{isa} {m}x{n}x{k} {layout}"));
                        }
                    }
                }
            }
        }
    }
}

/// Checks that tiles with any height give the same bits.
fn heights<F: WithKernel<Element: std::fmt::Debug>>(
    layout: F::Layout,
    a: &[F::Element],
    w: &[F::Element],
    (m, n, k): (usize, usize, usize),
) {
    let a = View::row_major(a, m, k);
    let b = View::row_major(w, n, k).transposed();
    for isa in Isa::levels() {
        let together = product::<F>((isa, layout), a, b, 16);
        for rows in 1..16 {
            assert!(
                product::<F>((isa, layout), a, b, rows) == together,
                "{isa} {rows}"
            );
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_tiles_of_every_height() {
    let (m, n, k) = SIZE;
    let (a, w) = (random(m * k, 5), random(n * k, 6));
    heights::<f32>((), &a, &w, (m, n, k));
    heights::<f16>((), &a, &w, (m, n, k));
    heights::<bf16>((), &a, &w, (m, n, k));
    heights::<i8>((), &a, &w, (m, n, k));
    for group in GROUPS {
        heights::<Quantized<4>>(ScaleLayout::int4(group), &a, &w, (m, n, k));
    }
    let wide = |x: &[f32]| x.iter().map(|&x| x.into()).collect::<Vec<f64>>();
    heights::<f64>((), &wide(&a), &wide(&w), (m, n, k));
}

#[test]
fn f32_and_f64_have_the_bits_of_the_products_in_place() {
    let (m, n, k) = SIZE;
    let (a, w) = (random(m * k, 7), random(n * k, 8));
    fn check<T: Plain + std::fmt::Debug>(a: &[T], w: &[T], (m, n, k): (usize, usize, usize)) {
        let a = View::row_major(a, m, k);
        let b = View::row_major(w, n, k).transposed();
        for isa in Isa::levels() {
            let mut y = vec![T::of(9.0); m * n];
            multiply_views(on(isa, 1), a, b, &Epilogue::NONE, &mut y);
            assert_eq!(
                product::<T>((isa, T::Layout::default()), a, b, 14),
                y,
                "{isa}"
            );
        }
    }
    check(&a, &w, (m, n, k));
    let wide = |x: &[f32]| x.iter().map(|&x| x.into()).collect::<Vec<f64>>();
    check(&wide(&a), &wide(&w), (m, n, k));
}

#[test]
fn columns_packed_by_rows_have_the_words_of_columns_packed_individually() {
    fn check<F: WithKernel<Element = f32>>() {
        for &k in K {
            for &n in N {
                let mut w = random(n * k, 9);
                let special = [f32::NAN, f32::INFINITY, -0.0, 1e-40, f32::MAX];
                for (to, special) in w.iter_mut().step_by(3).zip(special) {
                    *to = special;
                }
                let layouts = Layouts::new(&w, n, k);
                let [by_columns, by_rows, gaps] = layouts.views().map(View::transposed);
                assert!(by_rows.has_whole_rows() && (!gaps.has_whole_rows() || n < 2));
                for isa in Isa::levels() {
                    let packed = |b| PackedMatrix::<F>::new(on(isa, 2), b);
                    let expected = packed(by_columns);
                    let words = bytemuck::cast_slice::<_, u32>(expected.words());
                    for b in [by_rows, gaps] {
                        let found = packed(b);
                        assert!(
                            bytemuck::cast_slice::<_, u32>(found.words()) == words,
                            "{isa} {n}x{k}"
                        );
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<bf16>();
}

#[test]
fn products_in_bf16_of_f32_round_both_operands_and_add_in_f32() {
    let (m, n, k) = SIZE;
    let (a, w) = (random(m * k, 10), random(n * k, 11));
    let (bias, residual) = (random(n, 12), random(m * n, 13));
    let (rows, weights) = (Layouts::new(&a, m, k), Layouts::new(&w, n, k));
    let added = Added {
        bias: Some((&bias[..]).into()),
        residual: Some((&residual[..]).into()),
    };
    let element = |isa: Isa, at: usize| {
        let (i, j) = (at / n, at % n);
        bf16::element(isa, (), &a[i * k..][..k], &w[j * k..][..k]) + bias[j] + residual[at]
    };
    for isa in Isa::levels() {
        let expected: Vec<f32> = (0..m * n).map(|at| element(isa, at)).collect();
        for (a, w) in rows.matrices().into_iter().zip(weights.matrices()) {
            for threads in [1, 3] {
                let mut y = vec![9.0; m * n];
                let to = (&mut y[..]).into();
                multiply_rounded(on(isa, threads), a, w.transposed(), added, to);
                assert_same(&y, &expected, format_args!("{isa}, {threads} threads"));
            }
        }
    }
}

#[test]
fn a_product_of_depth_zero_is_zero_whatever_the_memory_held_before() {
    fn check<F: WithKernel<Element = f32>>(isa: Isa, layout: F::Layout) {
        lend(PACKED, 1 << 14, |bytes: &mut [u8]| bytes.fill(0xff)); // NaN
        let (a, b) = (View::row_major(&[], 3, 0), View::row_major(&[], 0, 5));
        let mut y = [9.0; 15];
        let packed = PackedMatrix::<F>::new_in(Aligned::empty(), on(isa, 1), layout, b);
        multiply_columns(
            on(isa, 1),
            Columns::Packed(&packed),
            a,
            &Epilogue::NONE,
            &mut y,
        );
        assert_eq!(y, [0.0; 15], "{isa}");
    }
    for isa in Isa::levels() {
        check::<f32>(isa, ());
        check::<f16>(isa, ());
        check::<bf16>(isa, ());
        check::<i8>(isa, ());
        for group in GROUPS {
            check::<Quantized<4>>(isa, ScaleLayout::int4(group));
        }
    }
}

/// Before the widening of a word was inlined, bf16 was 15 to 30 times as slow as f32.
#[test]
#[cfg_attr(any(miri, debug_assertions), ignore = "a test of optimized code")]
fn no_level_takes_four_times_as_long_in_bf16_as_in_f32() {
    let (m, n, k) = (64, 256, 512);
    let (a, w) = (random(m * k, 14), random(n * k, 15));
    let (a, b) = (
        View::row_major(&a, m, k),
        View::row_major(&w, n, k).transposed(),
    );
    fn once<F: WithKernel<Element = f32>>(isa: Isa, a: View<f32>, b: &PackedMatrix<F>) -> f64 {
        let mut y = vec![0.0; a.rows() * b.columns()];
        let columns = Columns::Packed(b);
        least(1, || {
            multiply_columns(on(isa, 1), columns, a, &Epilogue::NONE, &mut y);
        })
    }
    // The emulation has no such promise.
    let compiled = Isa::levels().into_iter();
    for isa in compiled.filter(|isa| isa.name() != "amx_emulated") {
        let single = PackedMatrix::<f32>::new(on(isa, 1), b);
        let half = PackedMatrix::<bf16>::new(on(isa, 1), b);
        // Alternately, so that a busy machine slows both down.
        let times = (0..20).map(|_| (once(isa, a, &single), once(isa, a, &half)));
        let (in_f32, in_bf16) = times.fold((f64::MAX, f64::MAX), |least, times| {
            (least.0.min(times.0), least.1.min(times.1))
        });
        println!("{isa}: {:.2} of f32's time", in_bf16 / in_f32);
        assert!(in_bf16 < 4.0 * in_f32, "{isa}: {in_bf16} s, {in_f32} s");
    }
}

mod accuracy;
mod bfdot;
use bfdot::bfdot;
