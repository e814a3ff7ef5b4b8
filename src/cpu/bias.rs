//! Sums of gradients: of all rows, for a bias that is added to every row; and of two gradients of one tensor.

use super::{Element, Real, parallel};

/// Rows that are summed in sequence before they are added to the others. It is part of the result, since it
/// fixes the order of addition.
const ROWS_PER_SUM: usize = 64;

/// The sum of the rows of `dy`, each `width` elements long.
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

/// `sum += more`, element by element.
pub fn add<T: Real>(sum: &mut [T], more: &[T]) {
    assert_eq!(sum.len(), more.len());
    parallel::for_chunks(sum, CHUNK, |start, sum| {
        for (sum, &more) in sum.iter_mut().zip(&more[start..]) {
            *sum += more;
        }
    });
}

/// Elements per piece of work.
const CHUNK: usize = 8192;

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
}
