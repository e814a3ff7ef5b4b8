//! Dot products of registers alone, in independent chains: the loop of the micro-kernel without its loads.

use std::{hint::black_box, marker::PhantomData};

use bytemuck::Zeroable;

use super::{CHUNK, Dots, Format, WIDTH};
use crate::vectors::Task;

/// Accumulators with independent chains of additions: enough for two units with a latency of four cycles, few
/// enough for 16 registers.
const SUMS: usize = 10;

/// Additions to each accumulator in one run, some 0.7 ms: long beside the waking of a thread, short beside a
/// scheduler's time slice.
const ROUNDS: usize = 1 << 19;

/// Rounds between two jumps. With a jump after each, Intel's CPUs before 2020 lost a sixth of the speed wherever it
/// happened to lie across a boundary of 32 bytes, which their cache of decoded instructions cannot hold.
const UNROLLED: usize = 4;

/// One run of one thread; returns the number of operations.
pub struct Registers<F>(pub PhantomData<F>);

impl<F: Format, D: Dots<F>> Task<D, usize> for Registers<F> {
    #[inline(always)]
    fn compute(self, d: D) -> usize {
        let words = [F::Word::zeroed(); 3 * CHUNK];
        let words = black_box(words.as_ptr());
        let lanes = D::PANEL / WIDTH;
        // SAFETY: 3 * CHUNK words are more than SUMS vectors, or a packed row, have.
        let rights: [D::Right; SUMS] =
            std::array::from_fn(|i| unsafe { d.right(words.wrapping_add(i * lanes)) });
        // SAFETY: as above.
        let mut sums = [unsafe { d.start(words, words) }; SUMS];
        for round in 0..ROUNDS / UNROLLED {
            for unrolled in 0..UNROLLED {
                // A different word each time, so that the compiler cannot compute the product once for all rounds.
                // SAFETY: as above.
                let left = unsafe { d.left(words, round % 4 * UNROLLED + unrolled) };
                for (sum, right) in sums.iter_mut().zip(rights) {
                    *sum = d.dot(left, right, *sum);
                }
            }
        }
        black_box(sums);
        2 * ROUNDS * SUMS * lanes * F::GROUP
    }
}
