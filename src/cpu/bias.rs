//! Adding one row to every row, and its gradient: sums over columns.

use super::{Element, parallel};

/// Rows that are summed in sequence before they are added to the others': part of the result, since it
/// fixes the order of addition.
const ROWS_PER_SUM: usize = 64;

/// Adds `bias` to each row of `y`.
pub fn add<T: Element>(x: &[T], bias: &[T], y: &mut [T]) {
    let width = bias.len();
    assert_eq!(x.len(), y.len());
    if width == 0 {
        return;
    }
    parallel::for_chunks(y, ROWS_PER_SUM * width, |start, y| {
        let rows = x[start..]
            .chunks_exact(width)
            .zip(y.chunks_exact_mut(width));
        for (x, y) in rows {
            for ((y, x), bias) in y.iter_mut().zip(x).zip(bias) {
                *y = T::narrow(x.widen() + bias.widen());
            }
        }
    });
}

/// The sum of the rows of `dy`, each as long as `sums`.
pub fn column_sums<T: Element>(dy: &[T], width: usize) -> Vec<T> {
    let mut total = vec![T::Wide::ZERO; width];
    if width == 0 {
        return Vec::new();
    }
    let chunk = ROWS_PER_SUM * width;
    let mut partial = vec![T::Wide::ZERO; dy.len().div_ceil(chunk) * width];
    parallel::for_chunks(&mut partial, width, |start, sums| {
        let first = start / width * chunk;
        let last = (first + chunk).min(dy.len());
        for row in dy[first..last].chunks_exact(width) {
            for (sum, dy) in sums.iter_mut().zip(row) {
                *sum += dy.to_wide();
            }
        }
    });
    for sums in partial.chunks_exact(width) {
        for (total, &sum) in total.iter_mut().zip(sums) {
            *total += sum;
        }
    }
    total.into_iter().map(T::from_wide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_sums_are_those_of_f64_rounded_once() {
        for (rows, width) in [(0, 3), (1, 1), (2, 5), (63, 4), (64, 4), (65, 4), (300, 17)] {
            let dy: Vec<f32> = (0..rows * width)
                .map(|i| ((i * 37 % 101) as f32).sin() * 1e3)
                .collect();
            let expected: Vec<f32> = (0..width)
                .map(|j| (0..rows).map(|i| f64::from(dy[i * width + j])).sum::<f64>() as f32)
                .collect();
            let sums = column_sums(&dy, width);
            // Two orders of f64 additions may round to neighbouring f32.
            for (sum, expected) in sums.iter().zip(&expected) {
                assert!(
                    (sum - expected).abs() <= expected.abs() * f32::EPSILON,
                    "{rows} {width}"
                );
            }
            assert_eq!(sums.len(), width);
        }
    }

    #[test]
    fn the_bias_is_added_to_every_row() {
        let x: Vec<f64> = (0..35).map(f64::from).collect();
        let mut y = vec![0.0; 35];
        add(&x, &[1.0, 2.0, 3.0, 4.0, 5.0], &mut y);
        assert!((0..35).all(|i| y[i] == (i + i % 5 + 1) as f64));
    }
}
