//! Inverted dropout with a given mask, and random masks.

use super::chacha::{AT_ONCE, BLOCK, Stream};
use crate::cpu::Cpu;
use crate::threads;
use crate::vectors::{Element, Loop, Real, Slice, SliceMut, Stored, with_type};

/// Computes `y = x / divisor` where `keep` is not 0, else 0. It is a true division, as in NumPy's `x * mask / (1 -
/// p)`, which a product with the reciprocal does not equal.
///
/// # Panics
/// If lengths or types do not match.
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

/// Draws a dropout mask from a seed's ChaCha12 stream, starting at a position in 32-bit words: `keep = 1` if the
/// next uniform value in `[0, 1)` is at least `p`, else 0. Each value uses the upper 53 out of 64 bits, as in
/// `rand`'s `f64`. Each thread seeks to its part.
pub fn draw_mask(cpu: Cpu, seed: [u8; 32], position: u128, p: f64, keep: &mut [u8]) {
    /// Elements whose random bits fit a thread's cache.
    const DRAWN: usize = 1024;
    let n_threads = threads::threads_for(keep.len(), cpu.threads);
    threads::for_chunks(n_threads, keep, DRAWN, |first, keep| {
        let start = position + 2 * first as u128;
        // The stream consists of blocks, and a part may begin within one.
        let skipped = (start % BLOCK as u128) as usize;
        let mut words = [0; 2 * DRAWN + AT_ONCE];
        let n_words = (skipped + 2 * keep.len()).next_multiple_of(AT_ONCE);
        cpu.isa.enter(Stream {
            seed: &seed,
            first_block: (start / BLOCK as u128) as u64,
            words: &mut words[..n_words],
        });
        cpu.isa
            .enter(Loop(|| keep_at_least(&words[skipped..], p, keep)));
    });
}

/// Compares as integers, which is equivalent.
#[inline(always)]
fn keep_at_least(words: &[u32], p: f64, keep: &mut [u8]) {
    let least = (p * (1u64 << 53) as f64).ceil() as u64;
    for (keep, [low, high]) in keep.iter_mut().zip(words.as_chunks().0) {
        let bits = u64::from(*high) << 32 | u64::from(*low);
        *keep = u8::from(bits >> 11 >= least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_kept_from_p_on_to_the_last_bit() {
        let unit = 1.0 / (1u64 << 53) as f64;
        for p in [0.0, unit, 0.1, 0.25, 1.0 / 3.0, 0.5, 0.9, 1.0 - unit] {
            let near = (p / unit) as u64;
            for n in near.saturating_sub(2)..(near + 3).min(1 << 53) {
                let mut keep = [9];
                let bits = (n << 11) | 1234;
                keep_at_least(&[bits as u32, (bits >> 32) as u32], p, &mut keep);
                assert_eq!(keep[0] == 1, n as f64 * unit >= p, "{p} {n}");
            }
        }
    }

    #[test]
    fn kept_values_are_divided_and_others_are_zero_even_if_x_is_not_finite() {
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
