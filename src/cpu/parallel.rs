//! Splitting work among threads, in pieces that do not depend on how many there are.

use std::{
    marker::PhantomData,
    ops::Range,
    slice,
    sync::atomic::{AtomicUsize, Ordering},
};

use rayon::prelude::*;

/// Fewer elements than this stay on the calling thread. Waking another costs some 10 µs; the
/// cheaper kernels, norm and softmax, take 20 µs for so many.
const PARALLEL_FROM: usize = 1 << 15;

/// Calls `work(start, piece)` for each piece of `chunk` elements of `out`, the last one shorter.
pub fn for_chunks<T: Send>(
    out: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Send + Sync,
) {
    if out.len() < PARALLEL_FROM {
        for (index, piece) in out.chunks_mut(chunk).enumerate() {
            work(index * chunk, piece);
        }
    } else {
        out.par_chunks_mut(chunk)
            .enumerate()
            .for_each(|(index, piece)| work(index * chunk, piece));
    }
}

/// As [`for_chunks`], with a piece of `second_chunk` elements of `second` for each piece of `out`.
pub fn for_chunk_pairs<T: Send, U: Send>(
    out: &mut [T],
    chunk: usize,
    second: &mut [U],
    second_chunk: usize,
    work: impl Fn(usize, &mut [T], &mut [U]) + Send + Sync,
) {
    assert_eq!(
        out.len().div_ceil(chunk),
        second.len().div_ceil(second_chunk)
    );
    if out.len() < PARALLEL_FROM {
        let pieces = out.chunks_mut(chunk).zip(second.chunks_mut(second_chunk));
        for (index, (piece, second_piece)) in pieces.enumerate() {
            work(index * chunk, piece, second_piece);
        }
    } else {
        out.par_chunks_mut(chunk)
            .zip(second.par_chunks_mut(second_chunk))
            .enumerate()
            .for_each(|(index, (piece, second_piece))| work(index * chunk, piece, second_piece));
    }
}

/// Calls `work` with each number below `tasks`, on at most `threads` threads, the caller's among
/// them. Who is free takes the next.
///
/// May be called from several threads and from within rayon: the caller can do all the work alone,
/// the others only help it.
pub fn for_tasks(threads: usize, tasks: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let take_tasks = || {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                break;
            }
            work(task);
        }
    };
    let helpers = threads.min(tasks).saturating_sub(1);
    if helpers == 0 {
        return take_tasks();
    }
    rayon::in_place_scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(|_| take_tasks());
        }
        take_tasks();
    });
}

/// Calls `work(index, piece)` for each piece of `length` elements, as [`for_tasks`] does.
pub fn for_pieces<T: Send>(
    threads: usize,
    all: &mut [T],
    length: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    assert_eq!(all.len() % length, 0);
    let tasks = all.len() / length;
    let rows = SharedRows::new(all, length);
    for_tasks(threads, tasks, |index| {
        // SAFETY: `for_tasks` gives each number out once.
        work(index, unsafe { rows.piece(index, 0..length) });
    });
}

/// Rows of a slice that several threads write to at once, each where no other does.
pub struct SharedRows<'a, T> {
    start: *mut T,
    rows: usize,
    width: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: it gives out `&mut [T]` to elements of its own, which may cross threads where T may; that
// no two of them overlap is the promise of those who call `piece`.
unsafe impl<T: Send> Sync for SharedRows<'_, T> {}

impl<'a, T> SharedRows<'a, T> {
    /// Rows of `width` elements.
    pub fn new(all: &'a mut [T], width: usize) -> Self {
        assert!(width > 0 && all.len().is_multiple_of(width));
        Self {
            start: all.as_mut_ptr(),
            rows: all.len() / width,
            width,
            lifetime: PhantomData,
        }
    }

    /// Some columns of a row.
    ///
    /// # Safety
    /// No other piece that has elements in common with this one is in use.
    // One `&self` gives out many `&mut`: that they are apart is what the caller promises.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn piece(&self, row: usize, columns: Range<usize>) -> &mut [T] {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.width);
        // SAFETY: within the rows * width elements at `start`, as was just seen.
        let start = unsafe { self.start.add(row * self.width + columns.start) };
        // SAFETY: the same, and the caller promises that no other piece overlaps.
        unsafe { slice::from_raw_parts_mut(start, columns.len()) }
    }
}
