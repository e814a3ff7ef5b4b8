//! Packed weights of every format in batches of every size, with epilogues: a row's bits are its own.

use super::*;
use crate::memory::LargePages;
use crate::products::{Matrix, PackedWeight, WeightFormat};
use crate::rows::source::Source;
use crate::threads::with_team;
use crate::vectors::Slice;

const FORMATS: [WeightFormat; 3] = [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Int8];

/// Around every height of tiles and blocks; the last are shared by threads or not.
const BATCHES: [usize; 9] = [2, 3, 14, 16, 17, 33, 97, 130, 290];

#[test]
fn a_row_has_the_same_bits_in_batches_of_every_size_in_every_format() {
    // No multiples of anything, and more than a chunk of every format.
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
            // The hidden rows, and those of the whole feed-forward.
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
