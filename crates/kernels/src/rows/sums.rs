//! Sums over rows, for the gradient of a bias.

use crate::vectors::{Element, Slice, SliceMut, Stored, with_type};
use crate::{cpu::Cpu, threads::parallel};

/// Rows that are summed in sequence before their sum is added to the others. Part of the definition, because it
/// fixes the summation order.
const ROWS_PER_SUM: usize = 64;

/// Writes the sum over `dy`'s rows to `total`, which is as long as a row.
///
/// # Panics
/// If lengths or types do not match.
pub fn column_sums(cpu: Cpu, dy: Slice, total: SliceMut) {
    with_type!(dy, T => typed_column_sums::<T>(cpu, T::of_slice(dy), T::of_slice_mut(total)))
}

fn typed_column_sums<T: Element>(cpu: Cpu, dy: &[T], total: &mut [T]) {
    let width = total.len();
    if width == 0 {
        return;
    }
    assert!(dy.len().is_multiple_of(width));
    let chunk = ROWS_PER_SUM * width;
    let mut partial = vec![T::Wide::ZERO; dy.len().div_ceil(chunk) * width];
    let threads = cpu.for_elements(partial.len()).threads;
    parallel::for_chunks(threads, &mut partial, width, |start, sums| {
        let first = start / width * chunk;
        let last = (first + chunk).min(dy.len());
        for row in dy[first..last].chunks_exact(width) {
            for (sum, dy) in sums.iter_mut().zip(row) {
                *sum += dy.to_wide();
            }
        }
    });
    let mut sums = vec![T::Wide::ZERO; width];
    for partial in partial.chunks_exact(width) {
        for (sum, &partial) in sums.iter_mut().zip(partial) {
            *sum += partial;
        }
    }
    for (total, sum) in total.iter_mut().zip(sums) {
        *total = T::from_wide(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::alone;

    #[test]
    fn column_sums_equal_f64_sums_rounded_once() {
        for (rows, width) in [(0, 3), (1, 1), (2, 5), (63, 4), (64, 4), (65, 4), (300, 17)] {
            let dy: Vec<f32> = (0..rows * width)
                .map(|i| ((i * 37 % 101) as f32).sin() * 1e3)
                .collect();
            let expected: Vec<f32> = (0..width)
                .map(|j| (0..rows).map(|i| f64::from(dy[i * width + j])).sum::<f64>() as f32)
                .collect();
            let mut sums = vec![9.0; width];
            column_sums(alone(), (&dy[..]).into(), (&mut sums[..]).into());
            // Two summation orders in f64 may round to adjacent f32 values.
            for (sum, expected) in sums.iter().zip(&expected) {
                assert!(
                    (sum - expected).abs() <= expected.abs() * f32::EPSILON,
                    "{rows} {width}"
                );
            }
        }
    }
}
