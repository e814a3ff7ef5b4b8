//! Packed weights in every format, in every batch size, with epilogues: a row's bits do not depend on the batch.

use half::{bf16, f16};

use super::*;
use crate::memory::LargePages;
use crate::products::formats::int4_search::{Int4Group, quantize};
use crate::products::{Matrix, PackedWeight, WeightFormat};
use crate::rows::source::Source;
use crate::threads::with_team;
use crate::vectors::Slice;

const FORMATS: [WeightFormat; 7] = [
    WeightFormat::F32,
    WeightFormat::F16,
    WeightFormat::Bf16,
    WeightFormat::Int8,
    WeightFormat::Int4By32,
    WeightFormat::Int4By64,
    WeightFormat::Int4By128,
];

/// Sizes around every tile and block height. Threads share the last ones or do not.
const BATCHES: [usize; 9] = [2, 3, 14, 16, 17, 33, 97, 130, 290];

#[test]
fn a_row_has_the_same_bits_in_batches_of_every_size_in_every_format() {
    // Sizes that are multiples of nothing, and more than a chunk in every format.
    let (d, d_ff, most) = (301, 339, BATCHES[8]);
    let [up, gate, down]: [Vec<f32>; 3] = [1, 2, 3].map(|seed| random(d_ff * d, seed));
    let (x, bias): (Vec<f32>, Vec<f32>) = (random(most * d, 4), random(d_ff, 5));
    let residual: Vec<f32> = random(most * d, 6);
    fn matrix(weight: &[f32], columns: usize) -> Matrix<'_> {
        Matrix::of_rows(Slice::F32(weight), columns)
    }
    let pages = LargePages::default();
    for isa in Isa::levels() {
        for (format, gated) in FORMATS.into_iter().flat_map(|f| [(f, false), (f, true)]) {
            let cpu = on(isa, 3);
            let up = match gated {
                false => PackedWeight::new(cpu, format, matrix(&up, d), &pages),
                true => PackedWeight::gated(cpu, format, matrix(&gate, d), matrix(&up, d), &pages),
            };
            let down = PackedWeight::new(cpu, format, matrix(&down, d_ff), &pages);
            let hidden_epilogue = Epilogue {
                activation: ActivationFunction::Gelu,
                up_bias: gated.then_some(&bias[..]),
                ..Epilogue::bias(Some(&bias))
            };
            // The hidden rows, and the whole feed-forward's rows.
            let both = |first: usize, m: usize, threads: usize| {
                let x = Source::new(&x[first * d..(first + m) * d], d);
                let epilogue = Epilogue {
                    residual: Some(&residual[first * d..(first + m) * d]),
                    ..Epilogue::NONE
                };
                let (mut hidden, mut y) = (vec![9.0; m * d_ff], vec![9.0; m * d]);
                with_team(threads, || {
                    let cpu = on(isa, threads);
                    up.multiply(cpu, &x, &hidden_epilogue, &mut hidden);
                    down.multiply_hidden(cpu, (&up, &hidden_epilogue), &x, &epilogue, &mut y);
                });
                (hidden, y)
            };
            let (hidden, y) = (0..most)
                .map(|i| both(i, 1, 1))
                .reduce(|all, row| ([all.0, row.0].concat(), [all.1, row.1].concat()))
                .unwrap();
            for (m, threads) in BATCHES.into_iter().flat_map(|m| [(m, 1), (m, 2)]) {
                let first = most - m;
                let found = both(first, m, threads);
                let what =
                    format_args!("{isa} {format:?}, {m} rows, {threads} threads, gated: {gated}");
                assert_same(&found.0, &hidden[first * d_ff..], what);
                assert_same(&found.1, &y[first * d..], what);
            }
        }
    }
}

#[test]
fn an_unpacked_row_has_the_weights_rounded_to_the_format() {
    let pages = LargePages::default();
    for (d_out, d_in) in [(1, 1), (33, 7), (70, 64), (101, 301), (16, 513)] {
        let weight: Vec<f32> = random(d_out * d_in, 7);
        for (isa, format) in Isa::levels()
            .into_iter()
            .flat_map(|i| FORMATS.map(|f| (i, f)))
        {
            let matrix = Matrix::of_rows(Slice::F32(&weight), d_in);
            let packed = PackedWeight::new(on(isa, 2), format, matrix, &pages);
            assert!(!weight.is_empty());
            for (i, row) in weight.chunks(d_in).enumerate() {
                let mut found = vec![9.0; d_in];
                packed.unpack_row(i, &mut found);
                let what = format_args!("{isa} {format:?}, row {i} of [{d_out}, {d_in}]");
                let rounded = |round: fn(f32) -> f32| row.iter().map(|&w| round(w)).collect();
                let expected: Vec<f32> = match format {
                    WeightFormat::F32 => row.to_vec(),
                    WeightFormat::F16 => rounded(|w| f16::from_f32(w).to_f32()),
                    WeightFormat::Bf16 => rounded(|w| bf16::from_f32(w).to_f32()),
                    WeightFormat::Int8 => row.chunks(128).flat_map(nearest_steps).collect(),
                    WeightFormat::Int4By32 => row.chunks(32).flat_map(decoded).collect(),
                    WeightFormat::Int4By64 => row.chunks(64).flat_map(decoded).collect(),
                    WeightFormat::Int4By128 => row.chunks(128).flat_map(decoded).collect(),
                };
                assert_same(&found, &expected, what);
            }
        }
    }
}

/// Rounds to the nearest step, with 127 steps on either side of zero. The step is rounded up to bfloat16.
fn nearest_steps(chunk: &[f32]) -> Vec<f32> {
    let largest = chunk.iter().fold(0f32, |largest, w| largest.max(w.abs()));
    let nearest = bf16::from_f32(largest / 127.0);
    let step = match nearest.to_f32() < largest / 127.0 {
        true => bf16::from_bits(nearest.to_bits() + 1),
        false => nearest,
    };
    let step = step.to_f32();
    let nearest = |w: &f32| (w * (1.0 / step)).round_ties_even() as i8 as f32 * step;
    chunk.iter().map(nearest).collect()
}

/// Returns a group's dequantized values.
fn decoded(group: &[f32]) -> Vec<f32> {
    let Int4Group {
        scale,
        minimum,
        values,
    } = quantize::<128>(group);
    let number = |&code: &u8| f32::from(code) * scale.to_f32() + minimum.to_f32();
    values[..group.len()].iter().map(number).collect()
}
