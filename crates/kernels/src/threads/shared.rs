//! A slice that several threads write concurrently.

use std::{marker::PhantomData, ops::Range, slice};

/// A slice that several threads write concurrently, each its own elements.
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: it shares only the right to take `&mut [T]` over distinct elements, which may cross threads if T may.
// Callers of `range` promise that these do not overlap.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Shares all elements in a slice.
    pub fn new(all: &'a mut [T]) -> Self {
        Self {
            start: all.as_mut_ptr(),
            len: all.len(),
            lifetime: PhantomData,
        }
    }

    /// Returns an element's address, for prefetching or for rows with gaps. It may lie outside the slice.
    #[inline(always)]
    pub fn address(&self, index: usize) -> *mut T {
        self.start.wrapping_add(index)
    }

    /// Returns the elements in a range.
    ///
    /// # Safety
    /// No other borrow of these elements is in use.
    // One `&self` returns many `&mut`. The caller promises that they are disjoint.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within the `len` elements at `start`, by the assertion above.
        let start = unsafe { self.start.add(range.start) };
        // SAFETY: as above, and the caller promises that no other borrow overlaps.
        unsafe { slice::from_raw_parts_mut(start, range.len()) }
    }
}
