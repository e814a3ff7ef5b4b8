//! Norms compared with the f64 reference, gradients with differences, and bits across thread counts.

use half::{bf16, f16};

use super::kind::*;
use crate::reference::{self, RoundingErrors, WIDTHS, assert_share, normal, on, random};
use crate::vectors::{Isa, Stored};

const LAYER_NORM: Norm = Norm {
    statistic: Statistic::Variance,
    gain: Gain::Weight,
    eps: 1e-5,
};
const RMS_NORM: Norm = Norm {
    statistic: Statistic::MeanSquare,
    gain: Gain::WeightAfterRounding,
    eps: 1e-6,
};
const GEMMA_NORM: Norm = Norm {
    gain: Gain::OnePlusWeight,
    ..RMS_NORM
};
const NORMS: [Norm; 3] = [LAYER_NORM, RMS_NORM, GEMMA_NORM];

/// Returns the norm of each row in `x`.
fn forward<T: Stored>(norm: Norm, isa: Isa, x: &[T], weight: &[T], bias: Option<&[T]>) -> Vec<T> {
    let mut y = vec![T::ZERO; x.len()];
    let (weight, bias) = (T::slice(weight), bias.map(T::slice));
    norm.forward(on(isa, 2), T::slice(x), weight, bias, T::slice_mut(&mut y));
    y
}

/// Returns the gradients for `x`, weight and bias, given `dy`.
fn backward<T: Stored>(norm: Norm, threads: usize, x: &[T], weight: &[T], dy: &[T]) -> [Vec<T>; 3] {
    let mut gradients = [x.len(), weight.len(), weight.len()].map(|len| vec![T::ZERO; len]);
    let [dx, dweight, dbias] = gradients.each_mut().map(|gradient| T::slice_mut(gradient));
    let cpu = on(Isa::best(), threads);
    let of_parameters = [dweight, dbias];
    norm.backward(
        cpu,
        T::slice(x),
        T::slice(weight),
        T::slice(dy),
        dx,
        of_parameters,
    );
    gradients
}

impl Norm {
    /// Returns the reference's `(x̂, gain)`.
    fn exact(&self, row: &[f64], weight: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let normal = match self.statistic {
            Statistic::Variance => reference::standardize(row, self.eps),
            Statistic::MeanSquare => reference::scale_to_unit_mean_square(row, self.eps),
        };
        let one = if self.gain == Gain::OnePlusWeight {
            1.0
        } else {
            0.0
        };
        (normal, weight.iter().map(|w| one + w).collect())
    }
}

fn typed<T: RoundingErrors>(values: &[f64]) -> Vec<T> {
    values.iter().map(|&v| T::from_f64(v)).collect()
}

fn exact<T: RoundingErrors>(values: &[T]) -> Vec<f64> {
    values.iter().map(|v| v.to_f64()).collect()
}

/// Returns the largest error over all rows, relative to the tolerance.
///
/// The tolerance is eight roundings in the wide type (square, sum, quotient, root, reciprocal, scale, gain, bias),
/// and one more each time a lane's summands double, relative to the terms in `y`; two more relative to the row's
/// largest `x̂`, for subtracting the mean; and the rounding to the stored type, twice if the norm rounds `x̂` first.
fn share_of_tolerance<T: RoundingErrors>(
    norm: Norm,
    rows: usize,
    width: usize,
    mean: f64,
    deviation: f64,
) -> f64 {
    let x: Vec<T> = random(rows * width, mean, deviation, 7);
    let weight: Vec<T> = random(width, 1.0, 0.3, 8);
    let bias: Vec<T> = random(width, 0.2, 0.5, 9);
    let levels = Isa::levels().into_iter();
    let shares = levels.map(|isa| {
        let y = forward(norm, isa, &x, &weight, Some(&bias));
        share_used(norm, &x, &weight, &bias, &y)
    });
    shares.fold(0.0, f64::max)
}

fn share_used<T: RoundingErrors>(norm: Norm, x: &[T], weight: &[T], bias: &[T], y: &[T]) -> f64 {
    let width = weight.len();
    let rows = x.len().checked_div(width).unwrap_or(0);
    let mut worst: f64 = 0.0;
    for row in 0..rows {
        let at = row * width..(row + 1) * width;
        let (normal, gain) = norm.exact(&exact(&x[at.clone()]), &exact(weight));
        let roundings = 8.0 + (width as f64 / 16.0).max(1.0).log2();
        let is_half = size_of::<T>() < 4;
        let stored = if is_half && norm.gain == Gain::WeightAfterRounding {
            2.0
        } else {
            1.0
        };
        let largest = normal.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
        for (i, y) in y[at].iter().enumerate() {
            let product = normal[i] * gain[i];
            let terms = product.abs() + bias[i].to_f64().abs();
            let mean = 2.0 * T::WIDE * largest * gain[i].abs();
            let allowed =
                (roundings * T::WIDE + stored * T::STORE * 1.01) * terms + mean + T::LEAST;
            let error = (y.to_f64() - (product + bias[i].to_f64())).abs();
            assert!(error.is_finite());
            worst = worst.max(error / allowed);
        }
    }
    worst
}

#[test]
fn every_width_and_type_is_within_its_roundings_of_the_reference() {
    fn check<T: RoundingErrors>(name: &str) {
        for norm in NORMS {
            let mut worst: f64 = 0.0;
            for width in WIDTHS {
                for rows in [0, 1, 5] {
                    worst = worst.max(share_of_tolerance::<T>(norm, rows, width, 0.3, 1.5));
                }
            }
            assert_share(worst, 0.15, format_args!("{name} {norm:?}"));
        }
    }
    check::<f32>("f32");
    check::<f64>("f64");
    check::<f16>("f16");
    check::<bf16>("bf16");
}

#[test]
fn rows_with_a_large_mean_and_small_deviation_keep_their_digits() {
    let norm = Norm {
        eps: 1e-12,
        ..LAYER_NORM
    };
    for width in [16, 33, 768, 1024] {
        let worst = share_of_tolerance::<f32>(norm, 40, width, 1e3, 1e-2);
        assert!(worst <= 1.0, "width {width}: {worst} of the tolerance");
    }
}

/// Moments are computed about the first element, which cannot lie further from the mean than this.
#[test]
fn a_first_element_far_from_the_others_costs_no_digits() {
    for width in [2, 31, 384, 4096] {
        let mut x: Vec<f32> = random(width, 0.0, 1.0, 31);
        x[0] = 1e6;
        let (weight, bias) = (vec![1.0; width], vec![0.0; width]);
        for isa in Isa::levels() {
            let y = forward(LAYER_NORM, isa, &x, &weight, Some(&bias));
            let share = share_used(LAYER_NORM, &x, &weight, &bias, &y);
            assert!(share <= 1.0, "{isa} {width}: {share}");
        }
    }
}

#[test]
fn a_row_normalized_in_place_has_the_same_bits() {
    for width in WIDTHS {
        let x: Vec<f32> = random(width, 0.3, 1.5, 32);
        let weight: Vec<f32> = random(width, 1.0, 0.3, 33);
        for norm in NORMS {
            let affine = norm.affine(&weight, None);
            for isa in Isa::levels() {
                let (mut y, mut row) = (vec![0.0; width], x.clone());
                norm.row(isa, &x, &affine, &mut y);
                norm.row_in_place(isa, &mut row, &affine);
                assert_eq!(row, y, "{norm:?} {isa} {width}");
            }
        }
    }
}

#[test]
fn constant_and_zero_rows_give_the_bias() {
    for value in [0.0f32, 1000.1, -3e-20] {
        let x = [value; 24];
        let norm = Norm {
            eps: 1e-12,
            ..LAYER_NORM
        };
        for y in forward(norm, Isa::best(), &x, &[2.0; 24], Some(&[0.5; 24])) {
            assert!((y - 0.5).abs() <= 1e-4, "{value} gives {y}");
        }
    }
    let y = forward::<f32>(RMS_NORM, Isa::best(), &[0.0; 24], &[2.0; 24], None);
    assert_eq!(y, [0.0; 24]);
}

#[test]
fn nan_and_infinity_affect_their_row_only() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x: Vec<f32> = (0..60).map(|i| i as f32).collect();
        x[25] = bad;
        for norm in NORMS {
            let y = forward(norm, Isa::best(), &x, &[1.0; 20], None);
            assert!(y[25].is_nan(), "{norm:?}, {bad}");
            assert!(y[..20].iter().chain(&y[40..]).all(|y| y.is_finite()));
        }
    }
}

/// Returns `Σ dy · norm(x)`.
fn loss(norm: Norm, x: &[f64], weight: &[f64], bias: &[f64], dy: &[f64]) -> f64 {
    let y = forward(norm, Isa::best(), x, weight, Some(bias));
    y.iter().zip(dy).map(|(y, dy)| y * dy).sum()
}

/// Returns the relative difference between `found` and the central difference of `f` along element `i`.
fn gradient_error(values: &[f64], i: usize, found: f64, f: impl Fn(&[f64]) -> f64) -> f64 {
    let step = f64::EPSILON.cbrt();
    let mut moved = values.to_vec();
    moved[i] = values[i] + step;
    let above = f(&moved);
    moved[i] = values[i] - step;
    ((above - f(&moved)) / (2.0 * step) - found).abs() / found.abs().max(1.0)
}

#[test]
fn gradients_equal_central_differences() {
    // Half of f64's digits, minus the loss from narrow rows' curvature.
    let allowed = 100.0 * f64::EPSILON.cbrt().powi(2);
    for norm in NORMS {
        for (rows, width) in [(1, 1), (3, 2), (5, 7), (2, 33), (70, 3)] {
            let x = normal(rows * width, 0.5, 1.0, 1);
            let weight = normal(width, 1.0, 0.3, 2);
            let bias = normal(width, 0.0, 0.3, 3);
            let dy = normal(rows * width, 0.2, 1.0, 4);
            // A large eps tames rows with two equal elements, whose third derivative is unbounded.
            let norm = Norm { eps: 0.1, ..norm };
            let [dx, dweight, dbias] = backward(norm, 2, &x, &weight, &dy);
            for (i, &dx) in dx.iter().enumerate() {
                let error = gradient_error(&x, i, dx, |x| loss(norm, x, &weight, &bias, &dy));
                assert!(
                    error <= allowed,
                    "{norm:?} {rows}x{width} dx[{i}]: {error:e}"
                );
            }
            for i in 0..width {
                let error =
                    gradient_error(&weight, i, dweight[i], |w| loss(norm, &x, w, &bias, &dy));
                assert!(error <= allowed, "{norm:?} dweight[{i}]: {error:e}");
                let error = gradient_error(&bias, i, dbias[i], |b| loss(norm, &x, &weight, b, &dy));
                assert!(error <= allowed, "{norm:?} dbias[{i}]: {error:e}");
            }
        }
    }
}

#[test]
fn f32_gradients_agree_with_f64_gradients() {
    for norm in NORMS {
        for (rows, width) in [(5, 17), (300, 100), (70, 768)] {
            let x = normal(rows * width, 0.3, 1.5, 11);
            let weight = normal(width, 1.0, 0.3, 12);
            let dy = normal(rows * width, 0.1, 1.0, 13);
            let exact = backward(norm, 2, &x, &weight, &dy);
            let (x, weight, of_y) = (typed(&x), typed(&weight), typed(&dy));
            let found = backward::<f32>(norm, 2, &x, &weight, &of_y);
            let share = |found: &[f32], exact: &[f64], roundings: f64, size: f64| {
                let errors = found.iter().zip(exact).map(|(f, e)| (*f as f64 - e).abs());
                errors.fold(0.0, f64::max) / (roundings * f32::STORE * size)
            };
            let largest = |values: &[f64]| values.iter().fold(0.0, |a: f64, v| a.max(v.abs()));
            // `rows` summands with random signs, times x̂ with unit size: the error grows as the root.
            let summed = (rows as f64).sqrt();
            let shares = [
                share(&found[0], &exact[0], 16.0, largest(&exact[0])),
                share(&found[1], &exact[1], 8.0, summed * largest(&dy)),
                share(&found[2], &exact[2], 8.0, summed * largest(&dy)),
            ];
            println!("{norm:?} {rows}x{width}: shares of the tolerance {shares:.2?}");
            assert!(shares.iter().all(|&s| s <= 1.0), "{shares:?}");
        }
    }
}

#[test]
fn the_thread_count_does_not_change_a_bit() {
    let (rows, width) = (501, 96);
    let x: Vec<f32> = random(rows * width, 0.3, 1.5, 21);
    let dy: Vec<f32> = random(rows * width, 0.1, 1.0, 22);
    let weight: Vec<f32> = random(width, 1.0, 0.3, 23);
    let run = |threads: usize| {
        let mut y = vec![0.0; x.len()];
        let cpu = on(Isa::best(), threads);
        let (x_slice, w_slice) = (f32::slice(&x), f32::slice(&weight));
        LAYER_NORM.forward(cpu, x_slice, w_slice, None, f32::slice_mut(&mut y));
        let gradients = backward(LAYER_NORM, threads, &x, &weight, &dy);
        let all = y.into_iter().chain(gradients.into_iter().flatten());
        all.map(f32::to_bits).collect::<Vec<_>>()
    };
    let one = run(1);
    assert!(one == run(2) && one == run(3));
}
