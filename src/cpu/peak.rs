//! How fast the CPU multiplies and adds when nothing holds it up: the ceiling of every product.

use std::{hint::black_box, sync::Barrier, thread, time::Instant};

use super::{
    arch::{Kernels, MOST_LANES, Task, Vectors},
    isa::Isa,
};

/// Sums that do not wait for each other: enough for two units of a latency of four, and few enough
/// for 16 registers.
const SUMS: usize = 10;

/// Additions to each sum at a time. Some 0.7 ms: long beside the waking of a thread, short beside the
/// time that the system lets a thread run.
const ROUNDS: usize = 1 << 19;

/// f32 operations per second of `threads` threads together, a multiplication and an addition being
/// two. The best of many short runs: what another process takes away only lengthens one. More threads
/// than the CPU runs at once add nothing.
pub fn f32_operations_per_second(isa: Isa, threads: usize) -> f64 {
    const TIMES: usize = 20;
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.clamp(1, at_once);
    let barrier = Barrier::new(threads);
    let fastest = || {
        let mut operations = 0;
        let mut seconds = f64::INFINITY;
        for _ in 0..TIMES {
            // Together, or a thread would be measured while others leave it what they share.
            barrier.wait();
            let start = Instant::now();
            operations = run(isa);
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

/// Keeps one thread busy for a moment; returns the number of operations.
fn run(isa: Isa) -> usize {
    let (mut result, mut lanes) = (0.0, 0);
    f32::run(
        isa,
        Level {
            result: &mut result,
            lanes: &mut lanes,
        },
    );
    black_box(result);
    2 * ROUNDS * SUMS * lanes
}

/// Enters the level's instructions.
struct Level<'a> {
    result: &'a mut f32,
    lanes: &'a mut usize,
}

impl Task<f32> for Level<'_> {
    fn run<V: Vectors<f32>>(self, v: V) {
        *self.lanes = V::LANES;
        v.run(MultiplyAdds(self.result));
    }
}

struct MultiplyAdds<'a>(&'a mut f32);

impl Task<f32> for MultiplyAdds<'_> {
    #[inline(always)]
    fn run<V: Vectors<f32>>(self, v: V) {
        let mut sums = [v.splat(1.0); SUMS];
        let factor = v.splat(black_box(0.999));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = v.multiply_add(*sum, factor, factor);
            }
        }
        let mut lanes = [0.0; MOST_LANES];
        for sum in sums {
            // SAFETY: no vector has more than MOST_LANES.
            unsafe { v.store(sum, lanes.as_mut_ptr()) };
            *self.0 += lanes[0];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop that the compiler removed would seem to run at any speed; one outside the level's
    /// instructions calls a function for each addition.
    #[test]
    fn every_level_has_a_speed_that_a_cpu_can_have() {
        for isa in Isa::all().into_iter().flatten() {
            let speed = f32_operations_per_second(isa, 1);
            // 512 bits, 2 units, 7 GHz at most; a multiplication and an addition in 100 ns at least.
            assert!((2e7..450e9).contains(&speed), "{}: {speed}", isa.name());
        }
    }
}
