//! What computations on the CPU run on: this is the one place that asks the environment.

use std::sync::OnceLock;

use candle_blocks_kernels::{Cpu, threads};
use candle_core::{Device, Result, utils::get_num_threads};

/// The instruction set that the environment asks for, or else the fastest, and candle's number of threads.
///
/// # Errors
/// If the environment asks for an instruction set that is unknown, or that this CPU lacks.
pub(crate) fn cpu() -> Result<Cpu> {
    Cpu::selected(n_threads()).map_err(candle_core::Error::wrap)
}

/// Runs `work`, between whose steps the threads stay awake.
pub(crate) fn with_team<R>(work: impl FnOnce() -> R) -> R {
    threads::with_team(n_threads(), work)
}

/// candle's [`get_num_threads`]: the number in `RAYON_NUM_THREADS`, or else that of the cores. candle counts
/// cores anew at every call, by reading `/proc/cpuinfo`, which takes longer than a small product; here they are
/// counted once.
fn n_threads() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let asked = std::env::var("RAYON_NUM_THREADS").ok();
    let asked = asked.and_then(|number| number.parse().ok());
    asked
        .filter(|&number: &usize| number > 0)
        .unwrap_or_else(|| *CORES.get_or_init(get_num_threads))
}

/// How layers and operations compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// By this crate's kernels, with the instruction set that [`isa`] names.
    Kernels,
    /// Composed of candle's own operations.
    Composed,
}

/// How everything in [`ops`](crate::ops) and [`layers`](crate::layers) computes on `device`: whatever the dtype, the shapes
/// and the mode, by kernels on the CPU and composed elsewhere.
pub fn route(device: &Device) -> Route {
    match device.is_cpu() {
        true => Route::Kernels,
        false => Route::Composed,
    }
}

/// The name of the instruction set that products on the CPU use: `portable`, `neon` (64-bit Arm), `avx2`,
/// `avx512`, `avx512_vnni` or `avx512_bf16` (x86-64). It is the fastest that the CPU has, unless the
/// environment variable `CANDLE_BLOCKS_ISA` names one. The last two are AVX-512 with dot products of int8, and
/// of int8 and bfloat16.
///
/// # Errors
/// If the variable names one that is unknown or that this CPU lacks.
pub fn isa() -> Result<&'static str> {
    cpu().map(|cpu| cpu.isa.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_threads_is_candles() {
        let candles = get_num_threads();
        assert_eq!((n_threads(), n_threads()), (candles, candles));
    }
}
