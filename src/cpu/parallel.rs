//! Splitting work among threads, in pieces that do not depend on how many there are.

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
