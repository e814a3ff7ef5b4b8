//! Memory that is reused: what one step of training frees, the next one needs in the same sizes.
//!
//! Large vectors go back to the system when they are freed, and come back one cleared page at a time. While a
//! [`Keeper`] lives, buffers are kept instead, and handed out again with whatever they held. What is kept and
//! what is in use together never exceed 1.5 times the most that was ever in use, so that it does not grow with
//! time.

use std::{
    ops,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::vectors::Element;

/// A number type whose buffers are kept.
pub trait Recycled: Element {
    /// The process-wide pool of this type.
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
            /// Buffers are kept from now on.
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

/// Buffers that wait to be reused, with counts of elements.
pub struct Pool<T> {
    /// Buffers to reuse, in the order in which they were freed.
    free: Vec<Vec<T>>,
    n_free: usize,
    n_used: usize,
    /// The most elements that were in use at any time.
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

    /// The smallest buffer with room for `len`, unless it is more than half as large again: the gradient of a weight
    /// can take the place of an activation of another size, and nothing takes twice the memory that it needs.
    fn take(&mut self, len: usize) -> Option<Vec<T>> {
        let most = len + len / 2;
        let sizes = self.free.iter().map(Vec::capacity).enumerate();
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
        // The half on top is for sizes that are needed most at different times.
        let most = self.most_used + self.most_used / 2;
        while !self.free.is_empty() && self.n_free + self.n_used > most {
            self.n_free -= self.free.remove(0).capacity();
        }
    }
}

/// While one lives, freed buffers are kept.
#[derive(Debug)]
pub struct Keeper(());

fn lock<T: Recycled>() -> MutexGuard<'static, Pool<T>> {
    T::pool().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers of unspecified value at first, whose memory goes back to the pool when they are dropped.
pub struct Buffer<T: Recycled>(Vec<T>);

impl<T: Recycled> Buffer<T> {
    /// A buffer of `len` numbers of unspecified value.
    pub fn new(len: usize) -> Self {
        let known = lock::<T>().take(len);
        let mut numbers = known.unwrap_or_else(|| Vec::with_capacity(len));
        // Fills only fresh memory, and what a larger buffer was longer than its last use.
        numbers.resize(len, T::ZERO);
        lock::<T>().using(numbers.capacity());
        Self(numbers)
    }

    /// A copy of a slice.
    pub fn copied(from: &[T]) -> Self {
        let mut copy = Self::new(from.len());
        copy.copy_from_slice(from);
        copy
    }

    /// Its vector, on loan: [`give_back`] must follow, or else the pool counts it as in use for ever.
    pub fn into_lent(mut self) -> Vec<T> {
        let numbers = std::mem::take(&mut self.0);
        std::mem::forget(self);
        numbers
    }

    /// Its vector, for good.
    pub fn into_vec(self) -> Vec<T> {
        let numbers = self.into_lent();
        let mut pool = lock::<T>();
        pool.n_used = pool.n_used.saturating_sub(numbers.capacity());
        numbers
    }
}

/// Takes back a vector from [`Buffer::into_lent`].
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
    fn the_next_step_takes_the_memory_of_the_last_one() {
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
    fn other_sizes_take_the_place_of_what_was_kept() {
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
    fn without_a_keeper_nothing_stays() {
        let mut pool = Pool::new();
        let buffer = used(&mut pool, 100);
        pool.give(buffer);
        assert_eq!((pool.n_free, pool.n_used), (0, 0));
    }
}
