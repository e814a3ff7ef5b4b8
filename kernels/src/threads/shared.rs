//! A slice that several threads write at the same time.

use std::{marker::PhantomData, ops::Range, slice};

/// A slice that several threads write at the same time, each its own elements.
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: all that it shares is the right to take `&mut [T]` of distinct elements, which may cross threads
// where T may; that no two of these overlap is the promise of those who call `range`.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Over all elements of a slice.
    pub fn new(all: &'a mut [T]) -> Self {
        Self {
            start: all.as_mut_ptr(),
            len: all.len(),
            lifetime: PhantomData,
        }
    }

    /// The address of an element, for prefetching; it need not lie within the slice.
    #[inline(always)]
    pub fn address(&self, index: usize) -> *const T {
        self.start.wrapping_add(index)
    }

    /// The elements of a range.
    ///
    /// # Safety
    /// No other borrow of these elements is in use.
    // One `&self` gives out many `&mut`: the caller promises that they are disjoint.
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
