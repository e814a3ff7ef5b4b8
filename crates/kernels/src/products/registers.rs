//! Dot products in registers, with independent chains: the micro-kernel's loop without its loads.

use std::{hint::black_box, marker::PhantomData};

use bytemuck::Zeroable;

use super::{CHUNK, Dots, Format, WIDTH};
use crate::vectors::Task;

/// Accumulators with independent chains: enough for two units with a four-cycle latency, few enough for 16
/// registers.
const SUMS: usize = 10;

/// Additions to each accumulator in one run, which takes about 0.7 ms: long compared with a thread's start, short
/// compared with a scheduler's time slice.
const ROUNDS: usize = 1 << 19;

/// Rounds between two jumps. With a jump after each round, Intel CPUs before 2020 lost a sixth of their speed
/// whenever the jump crossed a 32-byte boundary, where it cannot be held in their decoded instruction cache.
const UNROLLED: usize = 4;

/// A run on one thread. Returns the operation count.
pub struct Registers<F>(pub PhantomData<F>);

impl<F: Format, D: Dots<F>> Task<D, usize> for Registers<F> {
    #[inline(always)]
    fn compute(self, d: D) -> usize {
        let words = [F::Word::zeroed(); 3 * CHUNK];
        let words = black_box(words.as_ptr());
        let lanes = D::PANEL / WIDTH;
        // SAFETY: SUMS vectors, or a packed row, have fewer words than 3 * CHUNK.
        let rights: [D::Right; SUMS] =
            std::array::from_fn(|i| unsafe { d.right(words.wrapping_add(i * lanes), 0) });
        // SAFETY: as above.
        let mut sums = [unsafe { d.start(words, words) }; SUMS];
        for round in 0..ROUNDS / UNROLLED {
            for unrolled in 0..UNROLLED {
                // A different word each time, so that the compiler cannot hoist the product out of the loop.
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
