//! How fast the CPU multiplies and adds when nothing holds it up: the ceiling of every product.
//!
//! The loop is that of the micro-kernel without its loads: dot products of registers, in independent chains.

use std::{hint::black_box, sync::Barrier, thread, time::Instant};

use bytemuck::Zeroable;

use super::{
    format::{DotTask, Dots, Format},
    isa::Isa,
    tile::{CHUNK, WIDTH},
};

/// Accumulators with independent chains of additions: enough for two units with a latency of four cycles, few
/// enough for 16 registers.
const SUMS: usize = 10;

/// Additions to each accumulator in one run, some 0.7 ms: long beside the waking of a thread, short beside a
/// scheduler's time slice.
const ROUNDS: usize = 1 << 19;

/// Rounds between two jumps. With a jump after each, Intel's CPUs before 2020 lost a sixth of the speed wherever it
/// happened to lie across a boundary of 32 bytes, which their cache of decoded instructions cannot hold.
const UNROLLED: usize = 4;

/// Operations per second of `threads` threads together in a format, where a multiplication and an addition are
/// two. The best of many short runs, as interference by other processes only lengthens one. More threads than
/// the CPU runs at once add nothing.
pub fn operations_per_second<F: Format>(isa: Isa, threads: usize) -> f64 {
    const TIMES: usize = 20;
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.clamp(1, at_once);
    let barrier = Barrier::new(threads);
    let fastest = || {
        let mut operations = 0;
        let mut seconds = f64::INFINITY;
        for _ in 0..TIMES {
            // Started together: otherwise one thread would be measured while the others leave it what they
            // share.
            barrier.wait();
            let start = Instant::now();
            operations = run::<F>(isa);
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
        operations as f64 / seconds
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(fastest)).collect();
        let own = fastest();
        let others = others.into_iter().map(|thread| match thread.join() {
            Ok(speed) => speed,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        own + others.sum::<f64>()
    })
}

/// One run of one thread; returns the number of operations.
fn run<F: Format>(isa: Isa) -> usize {
    let (mut result, mut lanes) = (0, 0);
    F::run(
        isa,
        Level {
            result: &mut result,
            lanes: &mut lanes,
        },
    );
    black_box(result);
    2 * ROUNDS * SUMS * lanes * F::GROUP
}

/// Leads into the level's instructions.
struct Level<'a> {
    result: &'a mut usize,
    lanes: &'a mut usize,
}

impl<F: Format> DotTask<F> for Level<'_> {
    fn run<D: Dots<F>>(self, dots: D) {
        *self.lanes = D::PANEL / WIDTH;
        dots.run(Products(self.result));
    }
}

struct Products<'a>(&'a mut usize);

impl<F: Format> DotTask<F> for Products<'_> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, d: D) {
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
        *self.0 += size_of_val(&black_box(sums));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop that the compiler removed would seem to run at any speed; one outside of the level's instructions
    /// calls a function for each addition.
    #[test]
    fn every_level_has_a_speed_that_a_cpu_can_have() {
        for isa in Isa::levels() {
            let speeds = [
                operations_per_second::<f32>(isa, 1),
                operations_per_second::<half::bf16>(isa, 1),
                operations_per_second::<i8>(isa, 1),
            ];
            // Upper bound: 512 bits, 2 units, 7 GHz. Lower bound: a multiplication and an addition in 100 ns.
            for (speed, group) in speeds.into_iter().zip([1.0, 2.0, 4.0]) {
                let possible = (2e7..450e9 * group).contains(&speed);
                assert!(possible, "{}: {speed}", isa.name());
            }
        }
    }
}
