//! Working memory: aligned to cache lines, and kept by its thread between calls.

use std::{cell::Cell, marker::PhantomData, ops, slice, thread::LocalKey};

use bytemuck::{Pod, Zeroable};

/// A cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Bytes of one.
const LINE: usize = 64;

/// Numbers that start at a cache line, so that no vector lies across two.
pub struct Aligned<T> {
    lines: Vec<Line>,
    len: usize,
    numbers: PhantomData<T>,
}

impl<T: Pod> Aligned<T> {
    /// `len` zeros.
    pub fn zeros(len: usize) -> Self {
        const { assert!(align_of::<T>() <= LINE) };
        // From the system, which clears a page when it is first touched: by the thread that fills it.
        let lines = bytemuck::zeroed_vec((len * size_of::<T>()).div_ceil(LINE));
        Self {
            lines,
            len,
            numbers: PhantomData,
        }
    }

    /// No numbers.
    pub const fn empty() -> Self {
        Self {
            lines: Vec::new(),
            len: 0,
            numbers: PhantomData,
        }
    }

    /// Makes room for `len` numbers; what they are is left over from before.
    fn set_len(&mut self, len: usize) {
        if self.lines.len() * LINE < len * size_of::<T>() {
            *self = Self::zeros(len);
        }
        self.len = len;
    }
}

impl<T> ops::Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: lines are bytes without padding, any bytes are a `T` (`Pod`, demanded wherever lines
        // come from), aligned as `zeros` saw, and every method keeps `len` within the lines.
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
pub fn lend<T: Pod, R>(
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
