//! Scratch memory: aligned to cache lines, and kept by its thread between calls.
//!
//! A kernel borrows the calling thread's memory with [`lend`], so that it allocates only when it needs more than
//! ever before.

use std::{cell::Cell, marker::PhantomData, ops, thread::LocalKey};

use bytemuck::{Pod, Zeroable};

use super::{LargePages, large_pages::MappedPiece};
use crate::vectors::prefetch::LINE;

/// A cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; LINE]);

/// A growable slice that starts at a cache line, so that no aligned vector straddles two lines.
pub struct Aligned<T> {
    memory: Allocation,
    len: usize,
    /// The allocator for growth, if the memory shares mappings.
    pages: Option<LargePages>,
    numbers: PhantomData<T>,
}

enum Allocation {
    Lines(Vec<CacheLine>),
    Piece(MappedPiece),
}

/// The size in bytes from which a separate allocation uses large pages. A smaller range may not contain a whole
/// page.
const LARGE_PAGES_FROM: usize = 4 << 20;

impl Allocation {
    fn lines(&self) -> &[CacheLine] {
        match self {
            Self::Lines(lines) => lines,
            Self::Piece(piece) => bytemuck::cast_slice(piece.bytes()),
        }
    }

    fn lines_mut(&mut self) -> &mut [CacheLine] {
        match self {
            Self::Lines(lines) => lines,
            Self::Piece(piece) => bytemuck::cast_slice_mut(piece.bytes_mut()),
        }
    }
}

impl<T> Default for Aligned<T> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<T> Aligned<T> {
    /// Creates an empty slice without memory.
    pub const fn empty() -> Self {
        Self {
            memory: Allocation::Lines(Vec::new()),
            len: 0,
            pages: None,
            numbers: PhantomData,
        }
    }
}

impl<T: Pod> Aligned<T> {
    /// Creates a slice with `len` zeros.
    #[cfg(test)]
    pub fn zeros(len: usize) -> Self {
        let mut zeros = Self::empty();
        zeros.set_len(len);
        zeros
    }

    /// Creates an empty slice whose memory comes from `pages` when it grows.
    pub fn empty_in(pages: &LargePages) -> Self {
        Self {
            pages: Some(pages.clone()),
            ..Self::empty()
        }
    }

    /// Creates a slice with `len` zeros in memory from `pages`.
    pub fn zeros_in(pages: &LargePages, len: usize) -> Self {
        let mut zeros = Self::empty_in(pages);
        zeros.set_len(len);
        zeros
    }

    /// Creates a slice with `len` zeros. If there are many, only written ones take memory.
    pub fn zeros_when_written(len: usize) -> Self {
        let mut zeros = Self::empty();
        let n_lines = (len * size_of::<T>()).div_ceil(LINE);
        if let Some(piece) = MappedPiece::on_small_pages(n_lines * LINE) {
            zeros.memory = Allocation::Piece(piece);
        }
        zeros.set_len(len);
        zeros
    }

    /// Sets the length to `len`. The contents are unspecified.
    pub(crate) fn set_len(&mut self, len: usize) {
        const { assert!(align_of::<T>() <= LINE) };
        let n_lines = (len * size_of::<T>()).div_ceil(LINE);
        let bytes = n_lines * LINE;
        if self.memory.lines().len() < n_lines {
            // Its contents are not needed, so it need not last until the new memory is there.
            self.memory = Allocation::Lines(Vec::new());
            let piece = match &self.pages {
                Some(pages) => pages.take(bytes),
                None if bytes >= LARGE_PAGES_FROM => LargePages::default().take(bytes),
                None => None,
            };
            self.memory = match piece {
                Some(piece) => Allocation::Piece(piece),
                None => Allocation::Lines(vec![CacheLine::zeroed(); n_lines]),
            };
        }
        self.len = len;
    }
}

impl<T: Pod> ops::Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(self.memory.lines())[..self.len]
    }
}

impl<T: Pod> ops::DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(self.memory.lines_mut())[..self.len]
    }
}

impl<T> Aligned<T> {
    /// Returns an empty slice with another type, in the same memory.
    pub fn emptied<U>(self) -> Aligned<U> {
        Aligned {
            memory: self.memory,
            len: 0,
            pages: self.pages,
            numbers: PhantomData,
        }
    }
}

/// A kind of scratch memory, for any element type. Each thread has its own.
pub type Scratch = LocalKey<Cell<Aligned<u8>>>;

/// Declares scratch memory: `scratch!(NAME)` creates a `static NAME: &Scratch`.
#[macro_export]
macro_rules! scratch {
    ($(#[$doc:meta])* $visibility:vis $name:ident) => {
        $(#[$doc])*
        $visibility static $name: &$crate::memory::Scratch = {
            thread_local! {
                static MEMORY: std::cell::Cell<$crate::memory::Aligned<u8>> =
                    const { std::cell::Cell::new($crate::memory::Aligned::empty()) };
            }
            &MEMORY
        };
    };
}
pub(crate) use scratch;

/// Takes the calling thread's scratch memory. [`give_back`] returns it.
pub fn take<T: Pod>(scratch: &'static Scratch) -> Aligned<T> {
    scratch.take().emptied()
}

/// Returns scratch memory to the calling thread.
pub fn give_back<T>(scratch: &'static Scratch, memory: Aligned<T>) {
    scratch.set(memory.emptied());
}

/// Lends `len` elements with unspecified contents to `work`.
///
/// The memory is taken from the thread-local in the meantime. If the thread enters another product before `work`
/// ends, as a waiting pool thread may, that product finds no memory, and allocates its own.
pub fn lend<T: Pod, R>(
    scratch: &'static Scratch,
    len: usize,
    work: impl FnOnce(&mut [T]) -> R,
) -> R {
    let mut memory = take::<T>(scratch);
    memory.set_len(len);
    let result = work(&mut memory);
    give_back(scratch, memory);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_has_the_requested_length() {
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
    fn memory_from_shared_mappings_behaves_like_separate_memory() {
        let pages = LargePages::default();
        for len in [0, 1, 17, 1000, 100_000] {
            let mut numbers = Aligned::<f32>::empty_in(&pages);
            assert!(numbers.is_empty());
            numbers.set_len(len);
            assert_eq!(&*numbers, vec![0.0; len]);
            numbers.fill(1.0);
            let others = Aligned::<f32>::zeros_in(&pages, len);
            assert!(others.iter().all(|&x| x == 0.0) && numbers.iter().all(|&x| x == 1.0));
        }
    }

    #[test]
    fn a_nested_loan_has_separate_memory() {
        scratch!(SCRATCH);
        lend(SCRATCH, 20, |outer: &mut [f32]| {
            outer.fill(1.0);
            lend(SCRATCH, 30, |inner: &mut [f64]| inner.fill(2.0));
            assert_eq!(outer, [1.0; 20]);
        });
        lend(SCRATCH, 40, |memory: &mut [f32]| {
            assert_eq!(memory.len(), 40)
        });
    }
}
