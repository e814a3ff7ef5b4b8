//! Softmax compared with the f64 reference, and with itself for other hidden elements.

use half::{bf16, f16};

use super::*;
use crate::reference::{self, RoundingErrors, WIDTHS, assert_share, normal, on, random};

fn everything<'a>(width: usize) -> impl Fn(usize) -> VisibleElements<'a> + Send + Sync {
    move |_| VisibleElements::all(0..width)
}

fn softmax_of<'a, T: Element>(
    x: &[T],
    width: usize,
    seen: impl Fn(usize) -> VisibleElements<'a> + Send + Sync,
) -> Vec<T> {
    let mut y = vec![T::narrow(T::Acc::of(9.0)); x.len()];
    forward_here(Isa::best(), x, &mut y, width, PerRow::NOTHING, seen);
    y
}

#[test]
fn every_width_type_and_mask_is_within_its_roundings_of_the_reference() {
    fn check<T: RoundingErrors>(name: &str, spread: f64, rounded_sides: f64) {
        let mut worst: f64 = 0.0;
        for width in WIDTHS {
            for rows in [0, 1, 5] {
                let x: Vec<T> = random(rows * width, 1.0, spread, 3);
                let keep: Vec<u8> = (0..width).map(|j| u8::from(j % 3 != 1)).collect();
                let range = |row: usize| width * row / 16..width - width * row / 11;
                let y = softmax_of(&x, width, |row| VisibleElements {
                    range: range(row),
                    keep: Some(&keep),
                });
                for row in 0..if width == 0 { 0 } else { rows } {
                    let at = row * width..(row + 1) * width;
                    let scores: Vec<f64> = x[at.clone()].iter().map(|x| x.to_f64()).collect();
                    let seen = |j: usize| range(row).contains(&j) && keep[j] != 0;
                    let exact = reference::softmax(&scores, seen);
                    let largest = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
                    for (j, y) in y[at].iter().enumerate() {
                        if !seen(j) {
                            assert!(*y == T::ZERO, "row {row}, key {j} is not seen");
                            continue;
                        }
                        // The rounded difference to the maximum, which exp amplifies; then two roundings in exp
                        // itself, one in the sum, and one in the quotient.
                        let roundings = (largest - scores[j]) + 5.0;
                        let allowed = (rounded_sides * roundings * T::COMPUTE + T::STORE * 1.01)
                            * exact[j]
                            + T::LEAST;
                        worst = worst.max((y.to_f64() - exact[j]).abs() / allowed);
                    }
                }
            }
        }
        assert_share(worst, 0.2, name);
    }
    check::<f32>("f32", 3.0, 1.0);
    // The reference itself is f64 and rounds as much.
    check::<f64>("f64", 3.0, 2.0);
    check::<f16>("f16", 2.0, 1.0);
    check::<bf16>("bf16", 3.0, 1.0);
}

#[test]
fn a_row_without_visible_elements_is_zero_and_so_is_its_gradient() {
    let infinite = [f32::NEG_INFINITY; 20];
    let keep = [0u8; 20];
    for y in [
        softmax_of(&infinite, 20, everything(20)),
        softmax_of(&[1.0; 20], 20, |_| VisibleElements {
            range: 0..20,
            keep: Some(&keep),
        }),
        softmax_of(&[f32::NAN; 20], 20, |_| VisibleElements::all(7..7)),
    ] {
        assert_eq!(y, [0.0; 20]);
        let mut dx = [9.0; 20];
        backward_here(
            Isa::best(),
            &y,
            &[f32::INFINITY; 20],
            &mut dx,
            20,
            Means::WHOLE,
        );
        assert_eq!(dx, [0.0; 20]);
    }
}

#[test]
fn hidden_elements_do_not_change_a_bit() {
    let width = 37;
    let row: Vec<f32> = random(width, 0.0, 2.0, 5);
    let expected = softmax_of(&row, width, everything(width));
    for padding in [1, 3, 16, 27] {
        let mut padded = row.clone();
        padded.resize(width + padding, f32::NAN);
        let mut keep = vec![1; width];
        keep.resize(width + padding, 0);
        let cut = softmax_of(&padded, width + padding, |_| VisibleElements::all(0..width));
        let masked = softmax_of(&padded, width + padding, |_| VisibleElements {
            range: 0..width + padding,
            keep: Some(&keep),
        });
        for y in [cut, masked] {
            assert_eq!(y[..width], expected);
            assert!(y[width..].iter().all(|&y| y == 0.0));
        }
    }
}

#[test]
fn nan_and_positive_infinity_affect_visible_elements_in_their_row_only() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = [0.5f32; 60];
        x[25] = bad;
        let mut keep = [1u8; 20];
        keep[0] = 0;
        let y = softmax_of(&x, 20, |_| VisibleElements {
            range: 0..18,
            keep: Some(&keep),
        });
        assert!(y[21..38].iter().all(|y| y.is_nan()));
        assert_eq!([y[20], y[38], y[39]], [0.0; 3]);
        assert!(y[..20].iter().chain(&y[40..]).all(|y| y.is_finite()));
    }
    let all_nan = softmax_of(&[f32::NAN; 3], 3, everything(3));
    assert!(all_nan.iter().all(|y| y.is_nan()));
}

#[test]
fn scores_far_apart_neither_overflow_nor_vanish_wrongly() {
    assert_eq!(
        softmax_of(&[3e38f32, -3e38, 0.0], 3, everything(3)),
        [1.0, 0.0, 0.0]
    );
    assert_eq!(
        softmax_of(&[-3e38f32, f32::NEG_INFINITY], 2, everything(2)),
        [1.0, 0.0]
    );
}

#[test]
fn gradients_equal_central_differences() {
    let step = f64::EPSILON.cbrt();
    for (rows, width) in [(1, 1), (2, 7), (3, 33)] {
        let x = normal(rows * width, 0.0, 1.0, 1);
        let dy = normal(rows * width, 0.0, 1.0, 2);
        let keep: Vec<u8> = (0..width).map(|j| u8::from(j % 4 != 2)).collect();
        let seen = |row: usize| VisibleElements {
            range: row..width,
            keep: Some(&keep),
        };
        let loss = |x: &[f64]| -> f64 {
            softmax_of(x, width, seen)
                .iter()
                .zip(&dy)
                .map(|(y, dy)| y * dy)
                .sum()
        };
        let mut dx = vec![9.0; x.len()];
        backward_here(
            Isa::best(),
            &softmax_of(&x, width, seen),
            &dy,
            &mut dx,
            width,
            Means::WHOLE,
        );
        for i in 0..x.len() {
            let mut moved = x.clone();
            moved[i] += step;
            let above = loss(&moved);
            moved[i] = x[i] - step;
            let quotient = (above - loss(&moved)) / (2.0 * step);
            // The difference's truncation and rounding errors each stay below step².
            assert!(
                (quotient - dx[i]).abs() <= 4.0 * step * step,
                "{i}: {} and {quotient}",
                dx[i]
            );
        }
    }
}

#[test]
fn an_offset_common_to_all_cotangents_does_not_change_a_gradient() {
    for width in WIDTHS.into_iter().filter(|&width| width > 1) {
        let x: Vec<f32> = random(width, 0.0, 2.0, 5);
        // Exact in f32, and a thousand times as large as the differences.
        let dy: Vec<f32> = (0..width).map(|i| 1000.0 + (i % 9) as f32 / 8.0).collect();
        let mut dx = vec![0.0; width];
        backward_here(
            Isa::best(),
            &softmax_of(&x, width, everything(width)),
            &dy,
            &mut dx,
            width,
            Means::WHOLE,
        );
        let exact: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let y = reference::softmax(&exact, |_| true);
        let mean: f64 = y.iter().zip(&dy).map(|(y, &dy)| y * f64::from(dy)).sum();
        for (i, &dx) in dx.iter().enumerate() {
            // Roundings in the probability's exponent and in the differences, which are at most 1.
            let error = (f64::from(dx) - y[i] * (f64::from(dy[i]) - mean)).abs();
            let allowed = 24.0 * f64::from(f32::EPSILON) * y[i] + 1e-30;
            assert!(
                error <= allowed,
                "width {width}, {i}: {error:e} of {allowed:e}"
            );
        }
    }
}

#[test]
fn the_thread_count_does_not_change_a_bit() {
    let (rows, width) = (501, 96);
    let x: Vec<f32> = random(rows * width, 0.0, 3.0, 1);
    let bits = |threads: usize| {
        let cpu = on(Isa::best(), threads);
        let (mut y, mut dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        softmax(cpu, f32::slice(&x), f32::slice_mut(&mut y), width);
        let of_y = f32::slice(&y);
        gradient(cpu, of_y, f32::slice(&x), f32::slice_mut(&mut dx), width);
        y.into_iter()
            .chain(dx)
            .map(f32::to_bits)
            .collect::<Vec<_>>()
    };
    let one = bits(1);
    assert!(one == bits(2) && one == bits(3));
}
