//! Measures the CPU's peak arithmetic speed, an upper bound for every product.

use std::{marker::PhantomData, sync::Barrier, thread, time::Instant};

use half::{bf16, f16};

use super::{Registers, WeightFormat, WithKernel, formats::quantized::Quantized};
use crate::cpu::Cpu;

/// Returns the operations per second that all threads in `cpu` reach together in a format. A multiply-add counts as
/// two. The result is the best from many short runs, because interference by other processes only slows a run down.
/// Threads beyond the CPU's own number add nothing.
pub fn peak(cpu: Cpu, format: WeightFormat) -> f64 {
    let run: &(dyn Fn() -> usize + Sync) = match format {
        WeightFormat::F32 => &|| f32::kernel(cpu.isa).multiply_registers(Registers(PhantomData)),
        WeightFormat::F16 => &|| f16::kernel(cpu.isa).multiply_registers(Registers(PhantomData)),
        WeightFormat::Bf16 => &|| bf16::kernel(cpu.isa).multiply_registers(Registers(PhantomData)),
        WeightFormat::Int8 => &|| i8::kernel(cpu.isa).multiply_registers(Registers(PhantomData)),
        // A product in registers needs no groups.
        WeightFormat::Int4By32 | WeightFormat::Int4By64 | WeightFormat::Int4By128 => {
            &|| Quantized::<4>::kernel(cpu.isa).multiply_registers(Registers(PhantomData))
        }
    };
    const TIMES: usize = 20;
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    let threads = cpu.threads.clamp(1, at_once);
    let barrier = Barrier::new(threads);
    let fastest = || {
        let mut operations = 0;
        let mut seconds = f64::INFINITY;
        for _ in 0..TIMES {
            // All threads start together. Otherwise a thread would be measured while the others leave shared
            // resources to it.
            barrier.wait();
            let start = Instant::now();
            operations = run();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    /// A loop that the compiler removed would seem infinitely fast. A loop compiled without the level's instructions
    /// calls a function for each addition.
    #[test]
    fn every_level_has_a_plausible_speed() {
        for isa in Isa::levels() {
            let formats = [
                WeightFormat::F32,
                WeightFormat::F16,
                WeightFormat::Bf16,
                WeightFormat::Int8,
                WeightFormat::Int4By64,
            ];
            let speeds = formats.map(|format| peak(Cpu { isa, threads: 1 }, format));
            // Upper bound: 512 bits, 2 units, 7 GHz; a tile's product of bfloat16 or int8 in 16 cycles. Lower bound:
            // one multiply-add in 100 ns.
            let tiles = if isa.name() == "amx" { 8.0 } else { 1.0 };
            for (speed, at_once) in
                speeds
                    .into_iter()
                    .zip([1.0, 1.0, 2.0 * tiles, 4.0 * tiles, 4.0])
            {
                let possible = (2e7..450e9 * at_once).contains(&speed);
                assert!(possible, "{isa}: {speed}");
            }
        }
    }
}
