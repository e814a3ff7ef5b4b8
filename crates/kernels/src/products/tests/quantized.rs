//! Quantized weights in every file format, on every instruction set.

use super::*;
use crate::products::formats::group_scales::{
    GroupScales, NON_LINEAR_ZERO,
    ScaleType::{self, F16, F32},
};
use crate::products::{PackedWeight, QuantizedFormat, QuantizedWeightRows};
use crate::reference::random as numbers;
use crate::rows::source::Source;
use crate::threads::with_team;
use std::sync::Arc;
use weight::{Weight, formats, packed};

mod weight;

#[test]
fn every_quantized_sum_has_the_documented_order_and_only_the_error_of_the_rows_rounding() {
    let mut errors = Vec::new();
    for format in formats() {
        for [d_out, d_in] in [
            [1, 1],
            [9, 33],
            [33, 255],
            [31, 256],
            [70, 257],
            [16, 520],
            [33, 768],
        ] {
            let weight = Weight::new(format, [d_out, d_in], 17 + d_in as u64);
            let x = numbers(3 * d_in, 0.0, 1.0, 5);
            let rows = x.chunks_exact(d_in);
            let each = rows.flat_map(|x| {
                (0..d_out)
                    .map(|row| weight.element(x, row))
                    .collect::<Vec<_>>()
            });
            let (expected, exact): (Vec<f32>, Vec<f64>) = each.unzip();
            for (at, (found, exact)) in expected.iter().zip(&exact).enumerate() {
                let error = weight.row_error(&x[at / d_out * d_in..][..d_in], at % d_out);
                let rounding = 1e-5 * exact.abs() + 1e-6;
                errors.push((f64::from(*found) - exact).abs() / (error + rounding));
            }
            for isa in Isa::levels() {
                let packed = weight.pack(isa, format);
                for (m, threads) in [(1, 1), (2, 1), (3, 2)] {
                    let mut y = vec![9.0; m * d_out];
                    let x = Source::new(&x[..m * d_in], d_in);
                    with_team(threads, || {
                        packed.multiply(on(isa, threads), &x, &Epilogue::NONE, &mut y)
                    });
                    assert_same(
                        &y,
                        &expected[..m * d_out],
                        format_args!("{isa} {format:?} {m}x{d_out}x{d_in}"),
                    );
                }
            }
        }
    }
    // For this many errors, each is below six standard deviations.
    let most = errors.iter().fold(0.0, |most: f64, error| most.max(*error));
    let mean = (errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64).sqrt();
    assert!(most < 6.0 && (0.5..1.1).contains(&mean), "{most} {mean}");
}

#[test]
fn an_unpacked_row_has_the_weights_of_the_file() {
    for format in formats() {
        for [d_out, d_in] in [[1, 1], [33, 255], [70, 520]] {
            let weight = Weight::new(format, [d_out, d_in], 3);
            for isa in Isa::levels() {
                let packed = weight.pack(isa, format);
                for row in 0..d_out {
                    let mut found = vec![9.0; d_in];
                    packed.unpack_row(row, &mut found);
                    let groups = weight.parts_of(row);
                    let each = groups.flat_map(|(values, (_, [scale, offset]))| {
                        values.iter().map(move |&q| f32::from(q) * scale + offset)
                    });
                    let expected: Vec<f32> = each.collect();
                    assert_same(
                        &found,
                        &expected,
                        format_args!("{isa} {format:?} row {row}"),
                    );
                }
            }
        }
    }
}

#[test]
fn a_weight_with_reordered_inputs_gives_the_results_of_the_weight_in_order() {
    let (d, d_ff, rows) = (70, 257, 5);
    let order = |n: usize| -> Arc<[u32]> {
        let mut order: Vec<u32> = (0..n as u32).collect();
        let keys = numbers(n, 0.0, 1.0, n as u64);
        order.sort_by(|a, b| f32::total_cmp(&keys[*a as usize], &keys[*b as usize]));
        order.into()
    };
    let ordered = |x: &[f32], order: &[u32]| -> Vec<f32> {
        let rows = x.chunks_exact(order.len());
        rows.flat_map(|row| order.iter().map(|&at| row[at as usize]))
            .collect()
    };
    let x = numbers(rows * d, 0.0, 1.0, 9);
    for format in formats() {
        let (up, down) = (
            Weight::new(format, [d_ff, d], 1),
            Weight::new(format, [d, d_ff], 2),
        );
        let orders = [d, d_ff].map(order);
        for isa in Isa::levels() {
            let cpu = on(isa, 2);
            let packed = || [&up, &down].map(|weight| weight.pack(isa, format));
            let [plain_up, plain_down] = packed();
            let [up, down] = packed();
            let up = up.with_order(Some(orders[0].clone()));
            let down = down.with_order(Some(orders[1].clone()));
            let product = |weight: &PackedWeight, x: &[f32]| {
                let mut y = vec![9.0; rows * weight.d_out()];
                let x = Source::new(x, weight.d_in());
                with_team(2, || weight.multiply(cpu, &x, &Epilogue::NONE, &mut y));
                y
            };
            let hidden = product(&plain_up, &ordered(&x, &orders[0]));
            assert_same(&product(&up, &x), &hidden, format_args!("{isa} {format:?}"));
            let expected = product(&plain_down, &ordered(&hidden, &orders[1]));
            let mut y = vec![9.0; rows * d];
            with_team(2, || {
                let x = Source::new(&x, d);
                down.multiply_hidden(cpu, (&up, &Epilogue::NONE), &x, &Epilogue::NONE, &mut y)
            });
            assert_same(&y, &expected, format_args!("{isa} {format:?} hidden"));
            // If only the first product reorders its inputs, hidden rows stay packed.
            with_team(2, || {
                let x = Source::new(&x, d);
                let up = (&up, &Epilogue::NONE);
                plain_down.multiply_hidden(cpu, up, &x, &Epilogue::NONE, &mut y)
            });
            assert_same(
                &y,
                &product(&plain_down, &hidden),
                format_args!("{isa} {format:?} up's order"),
            );
            let unpacked = |weight: &PackedWeight| {
                let mut row = vec![9.0; d];
                weight.unpack_row(3, &mut row);
                row
            };
            assert_same(
                &ordered(&unpacked(&up), &orders[0]),
                &unpacked(&plain_up),
                format_args!("{isa} {format:?} row"),
            );
        }
    }
}

#[test]
fn quantized_products_have_the_same_bits_in_every_batch_gated_and_after_another_format() {
    let (d, d_ff, most) = (288, 320, 70);
    let x = numbers(most * d, 0.0, 1.0, 9);
    let all = formats();
    for (i, &format) in all.iter().enumerate() {
        let weights = [
            Weight::new(format, [d_ff, d], 1),
            Weight::new(format, [d_ff, d], 2),
        ];
        let other = all[(i + 7) % all.len()];
        let down = Weight::new(other, [d, d_ff], 3);
        for isa in Isa::levels() {
            let read = &mut |which: usize, rows| Ok(weights[which].rows(rows));
            let gated = packed(isa, format, ([d_ff, d], true), read).unwrap();
            let down = down.pack(isa, other);
            let up_epilogue = Epilogue {
                activation: ActivationFunction::Silu,
                ..Epilogue::NONE
            };
            let both = |rows: std::ops::Range<usize>, threads: usize| {
                let mut y = vec![9.0; rows.len() * d];
                let x = Source::new(&x[rows.start * d..rows.end * d], d);
                let cpu = on(isa, threads);
                with_team(threads, || {
                    down.multiply_hidden(cpu, (&gated, &up_epilogue), &x, &Epilogue::NONE, &mut y)
                });
                y
            };
            let single: Vec<f32> = (0..most).flat_map(|i| both(i..i + 1, 1)).collect();
            for (rows, threads) in [(0..2, 1), (0..13, 1), (3..most, 2)] {
                let expected = &single[rows.start * d..rows.end * d];
                assert_same(
                    &both(rows.clone(), threads),
                    expected,
                    format_args!("{isa} {format:?} {rows:?}"),
                );
            }
        }
    }
}

#[test]
fn a_quantized_row_has_the_same_bits_in_any_number_of_rows() {
    let ([d_out, d_in], most) = ([49, 520], 300);
    let x = numbers(most * d_in, 0.0, 1.0, 9);
    for format in formats() {
        let weight = Weight::new(format, [d_out, d_in], 1);
        for isa in Isa::levels() {
            let packed = weight.pack(isa, format);
            let product = |rows: std::ops::Range<usize>, threads: usize| {
                let mut y = vec![9.0; rows.len() * d_out];
                let x = Source::new(&x[rows.start * d_in..rows.end * d_in], d_in);
                with_team(threads, || {
                    packed.multiply(on(isa, threads), &x, &Epilogue::NONE, &mut y)
                });
                y
            };
            let all = product(0..most, 2);
            // One row, a pair, a tile, two tiles, and many.
            for rows in [7..8, 1..3, 5..8, 20..24, 9..16, 100..164] {
                assert_same(
                    &product(rows.clone(), 1),
                    &all[rows.start * d_out..rows.end * d_out],
                    format_args!("{isa} {format:?} {rows:?}"),
                );
            }
        }
    }
}

#[test]
fn scales_and_values_that_cannot_be_stored_are_refused_by_name() {
    let refused = |format: QuantizedFormat, change: &dyn Fn(&mut QuantizedWeightRows)| {
        let weight = Weight::new(format, [3, 40], 1);
        let read = &mut |_, rows| {
            let mut rows = weight.rows(rows);
            change(&mut rows);
            Ok(rows)
        };
        let packed = packed(Isa::levels()[0], format, (weight.shape, false), read);
        packed.err().unwrap()
    };
    let of = |scales| QuantizedFormat {
        bits_by_group: (4, 32),
        scales,
    };
    let zero = of(GroupScales::Zero {
        scales: ScaleType::F16,
        zero: 8,
    });
    for (format, change, expected) in [
        (
            zero,
            (|rows| rows.scales[4] = 0.1) as fn(&mut QuantizedWeightRows),
            "row 2: 0.1, which F16 does not hold",
        ),
        (zero, |rows| rows.scales[0] = f32::NAN, "NaN"),
        (
            zero,
            |rows| rows.values[1] = 16,
            "the quantized value 16, expected at most 15",
        ),
        (
            zero,
            |rows| rows.values.truncate(119),
            "119 quantized values in 3 rows",
        ),
        (
            of(GroupScales::Microscaled),
            |rows| rows.scales[1] = 0.75,
            "0.75, expected a power of two of -128 to 123",
        ),
        (
            of(GroupScales::Microscaled),
            |rows| rows.values[1] = 16,
            "the quantized value 16, expected at most 15",
        ),
        (zero, |rows| rows.scales.truncate(3), "scales and offsets"),
        (
            of(GroupScales::Zeros {
                scales: ScaleType::F16,
                least: 1,
            }),
            |rows| rows.offsets[1] = 0.5,
            "0.5, expected a whole number of 1 to 256",
        ),
        (
            of(GroupScales::TwoLevels),
            |rows| rows.scales[1] = 64.0,
            "64, expected a whole number of 0 to 63",
        ),
        (
            of(GroupScales::Short {
                zero: NON_LINEAR_ZERO,
            }),
            |rows| rows.scales[1] = 32.0,
            "32, expected a whole number of -32 to 31",
        ),
    ] {
        let found = refused(format, &change);
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn quantized_weights_take_the_documented_memory() {
    let isa = Isa::levels().pop().unwrap();
    let zero = |scales, zero| GroupScales::Zero { scales, zero };
    let short = |zero| GroupScales::Short { zero };
    let own = GroupScales::Zeros {
        scales: F16,
        least: 1,
    };
    for (bits_by_group, scales, bits) in [
        ((4, 32), zero(F16, 8), 4.5),               // Q4_0
        ((4, 32), GroupScales::Minima(F16), 5.0),   // Q4_1
        ((4, 32), own, 4.75),                       // GPTQ: 4.625
        ((4, 64), own, 4.375),                      // AWQ: 4.3125
        ((4, 128), own, 4.25),                      // 4.15625
        ((4, 256), own, 4.125),                     // per row: 4 and a little
        ((4, 128), zero(F16, 8), 4.125),            // compressed-tensors
        ((4, 32), GroupScales::TwoLevels, 4.5),     // Q4_K
        ((4, 32), GroupScales::Microscaled, 4.25),  // MXFP4
        ((4, 32), zero(F16, NON_LINEAR_ZERO), 4.5), // IQ4_NL
        ((4, 32), short(NON_LINEAR_ZERO), 4.25),    // IQ4_XS
        ((3, 16), short(4), 3.5),                   // Q3_K: 3.4375
        ((2, 16), GroupScales::Nibbles, 2.625),     // Q2_K
        ((5, 32), zero(F16, 16), 5.5),              // Q5_0
        ((5, 32), GroupScales::TwoLevels, 5.5),     // Q5_K
        ((6, 16), GroupScales::Signed, 6.625),      // Q6_K: 6.5625
        ((8, 32), zero(F16, 128), 8.5),             // Q8_0
        ((8, 32), own, 8.75),                       // GPTQ
        ((8, 64), zero(F16, 128), 8.25),
        ((8, 64), GroupScales::Minima(F16), 8.5), // MLX
        ((8, 64), own, 8.375),                    // GPTQ
        ((8, 128), zero(F16, 128), 8.125),
        ((8, 256), zero(F32, 128), 8.125), // per row: 8 and a little
    ] {
        let format = QuantizedFormat {
            bits_by_group,
            scales,
        };
        let packed = Weight::new(format, [64, 768], 1).pack(isa, format);
        assert_eq!(
            8.0 * packed.bytes() as f64 / (64.0 * 768.0),
            bits,
            "{format:?}"
        );
        assert_eq!(format.bits(), bits, "{format:?}");
    }
}

#[test]
fn every_power_of_two_scale_of_a_microscaled_weight_is_exact() {
    let format = QuantizedFormat {
        bits_by_group: (4, 32),
        scales: GroupScales::Microscaled,
    };
    let scales: Vec<f32> = (-128..=123).map(|power| 2f64.powi(power) as f32).collect();
    let d_in = 32 * scales.len();
    let read = &mut |_, _| {
        Ok(QuantizedWeightRows {
            values: (0..d_in).map(|i| (i % 16) as u8).collect(),
            scales: scales.clone(),
            ..QuantizedWeightRows::default()
        })
    };
    let doubles = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    for isa in Isa::levels() {
        let packed = packed(isa, format, ([1, d_in], false), read).unwrap();
        let mut row = vec![9.0; d_in];
        packed.unpack_row(0, &mut row);
        for (i, &found) in row.iter().enumerate() {
            let expected = (f64::from(doubles[i % 16]) * 2f64.powi((i / 32) as i32 - 128)) as f32;
            assert_eq!(found, expected, "{isa} {i}");
        }
        for (group, &scale) in scales.iter().enumerate() {
            // The value 4 is 2 doubled.
            let mut x = vec![0.0; d_in];
            x[32 * group + 4] = 1.0;
            let mut y = [9.0];
            packed.multiply(on(isa, 1), &Source::new(&x, d_in), &Epilogue::NONE, &mut y);
            let error = (f64::from(y[0]) - 4.0 * f64::from(scale)).abs();
            let rounding = 1e-5 * f64::from(scale) + 1e-44;
            assert!(error <= rounding, "{isa} {scale:e}: {:e}", y[0]);
        }
    }
}
