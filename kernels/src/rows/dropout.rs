//! Inverted dropout with a given mask.

use crate::cpu::Cpu;
use crate::vectors::{Element, Real, Slice, SliceMut, Stored, with_type};

/// `y = x / divisor` where `keep` is not 0, else 0: a true division, as in NumPy's
/// `x * mask / (1 - p)`, which a product with the reciprocal does not equal.
///
/// # Panics
/// If lengths or types do not fit.
pub fn dropout(cpu: Cpu, x: Slice, keep: &[u8], divisor: f64, y: SliceMut) {
    with_type!(x, T => {
        let (x, y) = (T::of_slice(x), T::of_slice_mut(y));
        assert_eq!((x.len(), keep.len()), (y.len(), y.len()));
        let divisor = <T as Element>::Acc::of(divisor);
        cpu.for_rows(y, 1, |start, y| {
            for (y, (x, &keep)) in y.iter_mut().zip(x[start..].iter().zip(&keep[start..])) {
                let kept = T::narrow(x.widen() / divisor);
                *y = if keep == 0 { T::ZERO } else { kept };
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_values_are_divided_and_others_are_zero_even_where_x_is_not_finite() {
        let x = [1.0f32, -2.0, f32::NAN, f32::INFINITY, 5.0, f32::NAN];
        let mut y = [9.0f32; 6];
        dropout(
            crate::reference::alone(),
            (&x[..]).into(),
            &[1, 0, 0, 0, 1, 1],
            0.7,
            (&mut y[..]).into(),
        );
        assert_eq!(y[..5], [1.0 / 0.7, 0.0, 0.0, 0.0, 5.0 / 0.7]);
        assert!(y[5].is_nan());
    }
}
