//! Work divided among threads, in pieces whose bounds do not depend on the number of threads.
//!
//! Everything here comes down to [`for_tasks`]: numbered tasks that threads take until none is left. Pieces of
//! fixed size are what keeps results independent of the thread count.

use std::{marker::PhantomData, ops::Range, slice};

mod team;

pub use team::with_team;

/// Elements below which the cheaper kernels, such as norm and softmax, stay on the calling thread: they take 20
/// µs for so many.
const PARALLEL_FROM: usize = 1 << 15;

/// Calls `work(start, piece)` for each piece of `chunk` elements of `out`; the last one may be shorter.
pub fn for_chunks<T: Send>(
    out: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Send + Sync,
) {
    let (len, threads) = (out.len(), threads_for(out.len()));
    let out = Shared::new(out);
    for_tasks(threads, len.div_ceil(chunk), |index| {
        let range = piece(len, chunk, index);
        // SAFETY: `for_tasks` gives out each number once, and pieces do not overlap.
        work(range.start, unsafe { out.range(range) });
    });
}

/// As [`for_chunks`], with a piece of `second_chunk` elements of `second` beside each piece of `out`.
pub fn for_chunk_pairs<T: Send, U: Send>(
    out: &mut [T],
    chunk: usize,
    second: &mut [U],
    second_chunk: usize,
    work: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) {
    let threads = threads_for(out.len());
    for_chunk_pairs_on(threads, out, chunk, second, second_chunk, work);
}

/// As [`for_chunk_pairs`], on at most `threads` threads.
pub fn for_chunk_pairs_on<T: Send, U: Send>(
    threads: usize,
    out: &mut [T],
    chunk: usize,
    second: &mut [U],
    second_chunk: usize,
    work: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) {
    let (len, second_len) = (out.len(), second.len());
    let tasks = len.div_ceil(chunk);
    assert_eq!(tasks, second_len.div_ceil(second_chunk));
    let (out, second) = (Shared::new(out), Shared::new(second));
    for_tasks(threads, tasks, |index| {
        let range = piece(len, chunk, index);
        let second_range = piece(second_len, second_chunk, index);
        // SAFETY: `for_tasks` gives out each number once, and pieces do not overlap.
        let (out, second) = unsafe { (out.range(range.clone()), second.range(second_range)) };
        work(range.start, out, second);
    });
}

/// Threads for the cheaper kernels; a team, which is awake, pays off from an eighth of the elements on.
fn threads_for(elements: usize) -> usize {
    let least = if team::is_here() {
        PARALLEL_FROM / 8
    } else {
        PARALLEL_FROM
    };
    if elements < least {
        1
    } else {
        rayon::current_num_threads()
    }
}

fn piece(len: usize, chunk: usize, index: usize) -> Range<usize> {
    index * chunk..len.min((index + 1) * chunk)
}

/// Calls `work` with each number below `tasks`, on at most `threads` threads, the caller's among them. A thread
/// that is done with one takes the next.
///
/// May be called from several threads at once, and from within rayon: the caller can do all the work alone, and
/// the others only help. Within [`with_team`] that team does the work.
pub fn for_tasks(threads: usize, tasks: usize, work: impl Fn(usize) + Sync) {
    if threads.min(tasks) <= 1 {
        return (0..tasks).for_each(work);
    }
    with_team(threads, || team::run(tasks, &work));
}

/// Work below which a second thread does not pay off, in multiplications or equivalents, of which a thread does
/// some 50 in a nanosecond. Waking a thread costs 10 µs; a member of a team joins in within some 0.3 µs.
pub fn worthwhile() -> usize {
    if team::is_here() { 1 << 15 } else { 1 << 19 }
}

/// Threads for so much work, measured as in [`worthwhile`]: 1, or `threads`.
pub fn threads_worth(work: usize, threads: usize) -> usize {
    if work < worthwhile() { 1 } else { threads }
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
    let all = Shared::new(all);
    for_tasks(threads, tasks, |index| {
        // SAFETY: `for_tasks` gives out each number once, and pieces do not overlap.
        work(index, unsafe {
            all.range(index * length..(index + 1) * length)
        });
    });
}

/// Calls `work(index, piece)` for consecutive pieces of `all` of these lengths, as [`for_tasks`] does.
pub fn for_pieces_of<T: Send>(
    threads: usize,
    all: &mut [T],
    lengths: &[usize],
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let mut end = 0;
    let pieces: Vec<Range<usize>> = lengths
        .iter()
        .map(|length| {
            let start = end;
            end += length;
            start..end
        })
        .collect();
    assert_eq!(end, all.len());
    let all = Shared::new(all);
    for_tasks(threads, lengths.len(), |index| {
        // SAFETY: `for_tasks` gives out each number once, and pieces do not overlap.
        work(index, unsafe { all.range(pieces[index].clone()) });
    });
}

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
