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

/// `keep = 1` where a uniform number of `[0, 1)` is at least `p`, else 0. Each number is the high 53 bits of 64 random ones,
/// little-endian, as `rand` makes an `f64`; compared as integers, which is the same comparison.
///
/// # Panics
/// If there are not 8 bytes for each element.
pub fn keep_at_least(bits: &[u8], p: f64, keep: &mut [u8]) {
    let (bits, rest) = bits.as_chunks::<8>();
    assert_eq!((bits.len(), rest.len()), (keep.len(), 0));
    let least = (p * (1u64 << 53) as f64).ceil() as u64;
    for (keep, bits) in keep.iter_mut().zip(bits) {
        *keep = u8::from(u64::from_le_bytes(*bits) >> 11 >= least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_at_least_p_to_the_last_bit() {
        let unit = 1.0 / (1u64 << 53) as f64;
        for p in [0.0, unit, 0.1, 0.25, 1.0 / 3.0, 0.5, 0.9, 1.0 - unit] {
            let near = (p / unit) as u64;
            for n in near.saturating_sub(2)..(near + 3).min(1 << 53) {
                let mut keep = [9];
                keep_at_least(&((n << 11) | 1234).to_le_bytes(), p, &mut keep);
                assert_eq!(keep[0] == 1, n as f64 * unit >= p, "{p} {n}");
            }
        }
    }

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
