//! Distribution of work among threads, in chunks whose bounds do not depend on the thread count.
//!
//! Everything is based on [`for_tasks`]: numbered tasks that threads take until none is left. Fixed chunk sizes keep
//! results independent from the thread count.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::team::{is_here, step};
use super::{Shared, with_team};

/// Calls `work` with each number below `tasks`, on at most `threads` threads, including the caller's. A thread that
/// is done with one task takes the next.
///
/// May be called from several threads at once, and within rayon: the caller can do all work alone, and the others
/// only help. Within [`with_team`], that team does the work.
pub fn for_tasks(threads: usize, tasks: usize, work: impl Fn(usize) + Sync) {
    // Not generic from here on: a task costs far more than an indirect call.
    for_each_task(threads, tasks, &work);
}

/// Like [`for_tasks`], but each task begins after all earlier ones have begun, so that it ends before fewer of them than
/// there are threads.
pub fn for_tasks_in_order(threads: usize, tasks: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    for_tasks(threads, tasks, |_| work(next.fetch_add(1, Relaxed)));
}

fn for_each_task(threads: usize, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
    if threads.min(tasks) <= 1 {
        return (0..tasks).for_each(work);
    }
    with_team(threads, || step(tasks, work));
}

/// Returns the work below which a second thread does not pay off, in multiplications or equivalents. A thread does
/// about 50 per nanosecond. Waking a thread costs 10 µs, while a team member joins in within about 0.3 µs.
pub fn worthwhile() -> usize {
    if is_here() { 1 << 15 } else { 1 << 19 }
}

/// Returns the thread count for this much work, measured as in [`worthwhile`]: 1, or `threads`.
pub fn threads_worth(work: usize, threads: usize) -> usize {
    if work < worthwhile() { 1 } else { threads }
}

/// The cost per element in a norm, a softmax or an activation, in multiplications.
pub const WORK_PER_ELEMENT: usize = 16;

/// Returns the thread count for this many elements in a norm, a softmax or an activation: 1, or `threads`.
pub fn threads_for(elements: usize, threads: usize) -> usize {
    threads_worth(elements.saturating_mul(WORK_PER_ELEMENT), threads)
}

/// Calls `work(start, chunk)` for each chunk of `chunk` elements in `out`, in parallel. The last chunk may be
/// shorter.
pub fn for_chunks<T: Send>(
    threads: usize,
    out: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Send + Sync,
) {
    let len = out.len();
    let out = Shared::new(out);
    for_tasks(threads, len.div_ceil(chunk), |index| {
        let range = piece(len, chunk, index);
        // SAFETY: `for_tasks` runs each number once, and chunks do not overlap.
        work(range.start, unsafe { out.range(range) });
    });
}

/// Like [`for_chunks`], with a chunk of `second_chunk` elements in `second` for each chunk in `out`.
pub fn for_chunk_pairs<T: Send, U: Send>(
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
        // SAFETY: `for_tasks` runs each number once, and chunks do not overlap.
        let (out, second) = unsafe { (out.range(range.clone()), second.range(second_range)) };
        work(range.start, out, second);
    });
}

fn piece(len: usize, chunk: usize, index: usize) -> Range<usize> {
    index * chunk..len.min((index + 1) * chunk)
}

/// Calls `work(index, piece)` for consecutive pieces of `all` with these lengths, in parallel like `for_tasks`.
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
        // SAFETY: `for_tasks` runs each number once, and pieces do not overlap.
        work(index, unsafe { all.range(pieces[index].clone()) });
    });
}

/// Returns part `i` when `0..len` is divided into `n` nearly equal parts, longer ones first.
pub fn part(len: usize, n: usize, i: usize) -> Range<usize> {
    // Most callers with short work have one part, which needs no division.
    let (least, longer) = if n == 1 { (len, 0) } else { (len / n, len % n) };
    let start = |i: usize| i * least + i.min(longer);
    start(i)..start(i + 1)
}
