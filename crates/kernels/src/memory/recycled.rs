//! Recycled buffers: the next training step needs the sizes that the last one freed.
//!
//! Freed large vectors are returned to the system, and come back one cleared page at a time. While a [`Keeper`]
//! lives, buffers are kept instead, and reused with their old contents. Kept and used buffers together never exceed
//! 1.5 times the peak usage, so that memory does not grow over time.

use std::{
    ops,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::large_pages::{is_there, tried_in_a_pass};
use crate::vectors::Element;

/// An element type whose buffers are kept.
pub trait Recycled: Element {
    /// Returns this type's process-wide pool.
    fn pool() -> &'static Mutex<Pool<Self>>;
}

macro_rules! recycled {
    ($($type:ty)*) => {
        $(impl Recycled for $type {
            fn pool() -> &'static Mutex<Pool<Self>> {
                static POOL: Mutex<Pool<$type>> = Mutex::new(Pool::new());
                &POOL
            }
        })*

        impl Default for Keeper {
            /// Keeps buffers from now on.
            fn default() -> Self {
                $(lock::<$type>().keepers += 1;)*
                Self(())
            }
        }

        impl Drop for Keeper {
            fn drop(&mut self) {
                $(lock::<$type>().release();)*
            }
        }
    };
}

recycled!(f32 f64 half::f16 half::bf16);

/// Buffers that wait to be reused, and element counts.
pub struct Pool<T> {
    /// Free buffers, oldest first.
    free: Vec<Vec<T>>,
    n_free: usize,
    n_used: usize,
    /// The peak element count in use.
    most_used: usize,
    keepers: usize,
}

impl<T: Element> Pool<T> {
    const fn new() -> Self {
        Self {
            free: Vec::new(),
            n_free: 0,
            n_used: 0,
            most_used: 0,
            keepers: 0,
        }
    }

    /// Takes the smallest buffer that holds `len` elements, at most 1.5 times as large: a weight's gradient can
    /// reuse an activation's buffer with another size, but nothing takes twice the memory that it needs.
    fn take(&mut self, len: usize) -> Option<Vec<T>> {
        let most = len + len / 2;
        // Of equal ones the last that was freed, which may still be in the cache.
        let sizes = self.free.iter().map(Vec::capacity).enumerate().rev();
        let (at, size) = sizes
            .filter(|&(_, size)| (len..=most).contains(&size))
            .min_by_key(|&(_, size)| size)?;
        self.n_free -= size;
        Some(self.free.remove(at))
    }

    fn using(&mut self, size: usize) {
        self.n_used += size;
        self.most_used = self.most_used.max(self.n_used);
        self.trim();
    }

    fn give(&mut self, buffer: Vec<T>) {
        self.n_used = self.n_used.saturating_sub(buffer.capacity());
        if self.keepers > 0 {
            self.n_free += buffer.capacity();
            self.free.push(buffer);
            self.trim();
        }
    }

    fn release(&mut self) {
        self.keepers -= 1;
        if self.keepers == 0 {
            (self.free, self.n_free) = (Vec::new(), 0);
            self.most_used = self.n_used;
        }
    }

    fn trim(&mut self) {
        // The additional half is for sizes that are needed at different times.
        let most = self.most_used + self.most_used / 2;
        while !self.free.is_empty() && self.n_free + self.n_used > most {
            self.n_free -= self.free.remove(0).capacity();
        }
    }
}

/// Keeps freed buffers while it lives.
#[derive(Debug)]
pub struct Keeper(());

fn lock<T: Recycled>() -> MutexGuard<'static, Pool<T>> {
    T::pool().lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer with unspecified contents at first, whose memory is returned to the pool on drop.
pub struct Buffer<T: Recycled>(Vec<T>);

impl<T: Recycled> Buffer<T> {
    /// Creates a buffer with `len` elements and unspecified contents.
    pub fn new(len: usize) -> Self {
        Self::known(len).unwrap_or_else(|| Self::cleared(len))
    }

    /// Creates a buffer with `len` elements and unspecified contents; `None` if the system would not give the memory.
    pub fn allocated(len: usize) -> Option<Self> {
        Self::known(len).or_else(|| {
            let bytes = len.saturating_mul(size_of::<T>());
            is_there(tried_in_a_pass(bytes)).then(|| Self::cleared(len))
        })
    }

    /// Takes a free buffer.
    fn known(len: usize) -> Option<Self> {
        let mut numbers = lock::<T>().take(len)?;
        // Fills elements beyond the buffer's last length.
        numbers.resize(len, T::ZERO);
        Some(Self::of(numbers))
    }

    /// Allocates zeros. The system clears new pages as they are first touched, by the thread that touches them.
    fn cleared(len: usize) -> Self {
        Self::of(vec![T::ZERO; len])
    }

    /// Creates a buffer from a vector.
    pub fn of(numbers: Vec<T>) -> Self {
        lock::<T>().using(numbers.capacity());
        Self(numbers)
    }

    /// Returns the vector as a loan. [`give_back`] must follow, or else the pool counts it as in use forever.
    pub fn into_lent(mut self) -> Vec<T> {
        let numbers = std::mem::take(&mut self.0);
        std::mem::forget(self);
        numbers
    }

    /// Returns the vector permanently.
    pub fn into_vec(self) -> Vec<T> {
        let numbers = self.into_lent();
        let mut pool = lock::<T>();
        pool.n_used = pool.n_used.saturating_sub(numbers.capacity());
        numbers
    }
}

/// Returns a vector from [`Buffer::into_lent`] to the pool.
pub fn give_back<T: Recycled>(numbers: Vec<T>) {
    lock::<T>().give(numbers);
}

impl<T: Recycled> Drop for Buffer<T> {
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.0));
    }
}

impl<T: Recycled> ops::Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Recycled> ops::DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(pool: &mut Pool<f64>, len: usize) -> Vec<f64> {
        let buffer = pool.take(len).unwrap_or_else(|| Vec::with_capacity(len));
        pool.using(buffer.capacity());
        buffer
    }

    #[test]
    fn the_next_step_reuses_the_last_steps_memory() {
        let mut pool = Pool::new();
        pool.keepers = 1;
        let sizes = [100, 40, 100, 7];
        let mut places = Vec::new();
        for _ in 0..3 {
            let buffers = sizes.map(|len| used(&mut pool, len));
            let mut at = buffers.each_ref().map(|buffer| buffer.as_ptr().addr());
            at.sort();
            places.push(at);
            buffers.into_iter().for_each(|buffer| pool.give(buffer));
        }
        assert_eq!((places[0], places[1]), (places[1], places[2]));
        assert_eq!((pool.n_free, pool.n_used, pool.most_used), (247, 0, 247));
    }

    #[test]
    fn other_sizes_replace_kept_buffers() {
        let mut pool = Pool::new();
        pool.keepers = 1;
        for len in [100, 200, 50, 300, 60, 90] {
            let buffer = used(&mut pool, len);
            pool.give(buffer);
            assert!(pool.n_free + pool.n_used <= 3 * pool.most_used / 2);
        }
        assert_eq!(pool.most_used, 300);
    }

    #[test]
    fn without_a_keeper_nothing_is_kept() {
        let mut pool = Pool::new();
        let buffer = used(&mut pool, 100);
        pool.give(buffer);
        assert_eq!((pool.n_free, pool.n_used), (0, 0));
    }
}
