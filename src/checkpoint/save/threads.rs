//! Runs long work on a tensor's values with as many threads as candle uses.

use std::thread;

use candle_core::utils::get_num_threads;

use crate::error::{Error, Result};

/// The fewest values that justify starting a thread.
const LEAST: usize = 1 << 16;

/// Returns the results for parts of a slice, in order. All parts but the last are multiples of `size`.
///
/// # Errors
/// If a thread panics.
pub(in crate::checkpoint) fn in_parts<R: Send>(
    name: &str,
    numbers: &[f32],
    size: usize,
    work: impl Fn(&[f32]) -> R + Sync,
) -> Result<Vec<R>> {
    let per_thread = numbers
        .len()
        .div_ceil(get_num_threads())
        .max(LEAST)
        .next_multiple_of(size);
    if numbers.len() <= per_thread {
        return Ok(vec![work(numbers)]);
    }
    let work = &work;
    let results: std::result::Result<Vec<R>, _> = thread::scope(|scope| {
        let parts = numbers.chunks(per_thread);
        // Where the system refuses a thread, this one does its part.
        let spawn = |part| {
            let thread = thread::Builder::new().spawn_scoped(scope, move || work(part));
            thread.map_err(|_| part)
        };
        let threads: Vec<_> = parts.map(spawn).collect();
        let join = threads.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join(),
            Err(part) => Ok(work(part)),
        });
        join.collect()
    });
    results.map_err(|_| Error::input(name, "a thread that encoded it ended early"))
}
