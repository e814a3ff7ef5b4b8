//! Sums in a fixed number of lanes: element `i` is added to lane `i mod LANES`.
//!
//! Each of sixteen partial sums accumulates a sixteenth of the rounding steps. The loop vectorizes without
//! permission to reassociate, and the summation order is fixed, so that a sum has the same bits on every machine and
//! for any thread count.

use crate::vectors::Real;

/// Partial sums per row: the f32 lane count in an AVX-512 register.
pub const LANES: usize = 16;

/// Accumulates in lanes: `$add` updates a lane with each `$value`, chunk by chunk, and then the tail.
macro_rules! in_lanes {
    ($start:expr, $values:expr, |$lane:ident, $value:pat_param| $add:expr) => {{
        let mut lanes = [$start; LANES];
        let (chunks, tail) = $values;
        for chunk in chunks {
            for ($lane, $value) in lanes.iter_mut().zip(chunk) {
                $add
            }
        }
        for ($lane, $value) in lanes.iter_mut().zip(tail) {
            $add
        }
        lanes
    }};
}

/// Returns the sum of `term(x)`.
#[inline(always)]
pub fn sum<T: Copy, R: Real>(values: &[T], term: impl Fn(T) -> R) -> R {
    let values = values.as_chunks::<LANES>();
    let lanes = in_lanes!(R::ZERO, values, |lane, &value| *lane += term(value));
    combine(lanes, |a, b| a + b)
}

/// Returns the sum of `term(x, y)` over two slices with equal lengths.
#[inline(always)]
pub fn sum_pairs<T: Copy, R: Real>(xs: &[T], ys: &[T], term: impl Fn(T, T) -> R) -> R {
    assert_eq!(xs.len(), ys.len());
    let mut lanes = [R::ZERO; LANES];
    let (x_chunks, x_tail) = xs.as_chunks::<LANES>();
    let (y_chunks, y_tail) = ys.as_chunks::<LANES>();
    for (x_chunk, y_chunk) in x_chunks.iter().zip(y_chunks) {
        for (lane, (&x, &y)) in lanes.iter_mut().zip(x_chunk.iter().zip(y_chunk)) {
            *lane += term(x, y);
        }
    }
    for (lane, (&x, &y)) in lanes.iter_mut().zip(x_tail.iter().zip(y_tail)) {
        *lane += term(x, y);
    }
    combine(lanes, |a, b| a + b)
}

/// Replaces each `x` by `update(x)`, and returns the sum of `term(update(x))`.
#[inline(always)]
pub fn update_and_sum<R: Real>(
    values: &mut [R],
    update: impl Fn(R) -> R,
    term: impl Fn(R) -> R,
) -> R {
    let values = values.as_chunks_mut::<LANES>();
    let lanes = in_lanes!(R::ZERO, values, |lane, value| {
        *value = update(*value);
        *lane += term(*value);
    });
    combine(lanes, |a, b| a + b)
}

/// Returns the largest element that is not NaN, or `-inf` if there is none.
#[inline(always)]
pub fn max<R: Real>(values: &[R]) -> R {
    // NaN compares false, and leaves the lane unchanged.
    let larger = |a: R, b: R| if b > a { b } else { a };
    let (start, values) = (R::of(f64::NEG_INFINITY), values.as_chunks::<LANES>());
    let lanes = in_lanes!(start, values, |lane, &value| *lane = larger(*lane, value));
    combine(lanes, larger)
}

/// Merges the upper half of the lanes into the lower half until one lane remains.
// Not inlined: its halving pattern would determine how the compiler vectorizes the loops before it.
#[inline(never)]
fn combine<R: Real>(mut lanes: [R; LANES], merge: impl Fn(R, R) -> R) -> R {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = merge(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_counted_once_at_every_length() {
        for n in 0..4 * LANES {
            let mut values: Vec<f64> = (1..=n).map(|i| i as f64).collect();
            let triangle = (n * (n + 1) / 2) as f64;
            assert_eq!(sum(&values, |x| x), triangle);
            assert_eq!(sum_pairs(&values, &values, |x, y| 2.0 * x - y), triangle);
            let largest = if n == 0 { f64::NEG_INFINITY } else { n as f64 };
            assert_eq!(max(&values), largest);
            assert_eq!(
                update_and_sum(&mut values, |x| x + 1.0, |x| x - 1.0),
                triangle
            );
            assert!(values.iter().enumerate().all(|(i, &x)| x == (i + 2) as f64));
        }
    }

    #[test]
    fn trailing_zeros_do_not_change_a_bit() {
        let row: Vec<f32> = (0..37).map(|i| 1.0 / (i as f32 + 3.0)).collect();
        let expected = sum(&row, |x| x);
        for padding in 1..40 {
            let mut padded = row.clone();
            padded.resize(row.len() + padding, 0.0);
            assert_eq!(sum(&padded, |x| x).to_bits(), expected.to_bits());
        }
    }

    #[test]
    fn the_maximum_ignores_nan() {
        let values = [f32::NAN, -3.0, f32::NAN, -1.0, f32::NEG_INFINITY];
        assert_eq!(max(&values), -1.0);
        assert_eq!(max(&[f32::NAN]), f32::NEG_INFINITY);
    }
}
