//! Working memory: aligned to cache lines, and kept by its thread between calls.

use std::{cell::Cell, ops, slice, thread::LocalKey};

use super::Real;

/// Numbers per line: one cache line of f32, two of f64.
const LINE: usize = 16;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line<T>([T; LINE]);

/// Numbers that start at a cache line, so that no vector lies across two.
pub struct Aligned<T> {
    lines: Vec<Line<T>>,
    len: usize,
}

impl<T: Real> Aligned<T> {
    /// `len` zeros.
    pub fn zeros(len: usize) -> Self {
        let lines = vec![Line([T::ZERO; LINE]); len.div_ceil(LINE)];
        Self { lines, len }
    }

    /// No numbers.
    pub const fn empty() -> Self {
        Self {
            lines: Vec::new(),
            len: 0,
        }
    }

    /// Makes room for `len` numbers; what they are is left over from before.
    fn set_len(&mut self, len: usize) {
        if self.lines.len() * LINE < len {
            *self = Self::zeros(len);
        }
        self.len = len;
    }
}

impl<T> ops::Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: a `Line` is LINE numbers without padding (`repr(C)`, and 64 divides their size),
        // and every method keeps `len` within the lines.
        unsafe { slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T> ops::DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the lines are borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

/// The working memory of one thread.
pub type Scratch<T> = LocalKey<Cell<Aligned<T>>>;

/// Lends `len` numbers of any value to `work`.
///
/// The memory is taken out of its place meanwhile: should the thread run another product before
/// this one ends, as a waiting thread of a pool may, that one finds none and makes its own.
pub fn lend<T: Real, R>(
    scratch: &'static Scratch<T>,
    len: usize,
    work: impl FnOnce(&mut [T]) -> R,
) -> R {
    let mut memory = scratch.replace(Aligned::empty());
    memory.set_len(len);
    let result = work(&mut memory);
    scratch.set(memory);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_of_the_length_asked_for() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let single = Aligned::<f32>::zeros(len);
            let double = Aligned::<f64>::zeros(len);
            assert_eq!((single.len(), double.len()), (len, len));
            assert!(len == 0 || single.as_ptr().addr().is_multiple_of(64));
            assert!(len == 0 || double.as_ptr().addr().is_multiple_of(64));
            assert!(single.iter().all(|&x| x == 0.0));
        }
    }

    #[test]
    fn a_loan_within_a_loan_is_other_memory() {
        thread_local!(static SCRATCH: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) });
        lend(&SCRATCH, 20, |outer| {
            outer.fill(1.0);
            lend(&SCRATCH, 30, |inner| inner.fill(2.0));
            assert_eq!(outer, [1.0; 20]);
        });
        lend(&SCRATCH, 40, |memory| assert_eq!(memory.len(), 40));
    }
}
