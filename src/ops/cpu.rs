//! What computations on the CPU run on: this is the one place that asks the environment.

use std::sync::OnceLock;

use candle_blocks_kernels::{Cpu, threads};
use candle_core::{Device, Result, bail, utils::get_num_threads};

/// The instruction set that the environment asks for, or else the fastest, and candle's number of threads.
///
/// # Errors
/// If the environment asks for an instruction set that is unknown, or that this CPU lacks, or to rehearse what is unknown.
pub(crate) fn cpu() -> Result<Cpu> {
    if let Err(reason) = asked_to_rehearse() {
        bail!("{reason}");
    }
    Cpu::selected(n_threads()).map_err(candle_core::Error::wrap)
}

/// Runs `work`, between whose steps the threads stay awake.
pub(crate) fn with_team<R>(work: impl FnOnce() -> R) -> R {
    threads::with_team(n_threads(), work)
}

/// Threads that compute, at most, for each core. More wait for each other: with 1,000 for each, one text takes a minute.
const MOST_PER_CORE: usize = 32;

/// The number of threads that compute on the CPU: candle's [`get_num_threads`], which is the number in `RAYON_NUM_THREADS` or
/// else that of the cores; but at most 32 for each core. Results have the same bits with any number.
///
/// candle counts cores anew at every call, by reading `/proc/cpuinfo`, which takes longer than a small product; here they are
/// counted once.
pub fn n_threads() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    static MOST: OnceLock<usize> = OnceLock::new();
    let asked = std::env::var("RAYON_NUM_THREADS").ok();
    let asked = asked.and_then(|number| number.parse().ok());
    match asked.filter(|&number: &usize| number > 0) {
        None => *CORES.get_or_init(get_num_threads),
        Some(asked) => asked.min(*MOST.get_or_init(|| {
            let cores = std::thread::available_parallelism();
            MOST_PER_CORE * cores.map_or(1, usize::from)
        })),
    }
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
    match device.is_cpu() && rehearsed().is_none() {
        true => Route::Kernels,
        false => Route::Composed,
    }
}

/// Whose operations a composed step is made of: they differ in what they can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Cuda,
    Metal,
}

/// The back end that computes composed steps on a device, or as which the CPU computes them.
pub(crate) fn backend(device: &Device) -> Backend {
    match device {
        Device::Metal(_) => Backend::Metal,
        Device::Cuda(_) => Backend::Cuda,
        Device::Cpu => rehearsed().unwrap_or(Backend::Cuda),
    }
}

/// The environment variable that has the CPU compute as another device does, to try that without having it: `cuda` or
/// `metal`.
const REHEARSE: &str = "CANDLE_BLOCKS_REHEARSE";

/// The back end as which the CPU computes, where the environment asks for that.
pub(super) fn rehearsed() -> Option<Backend> {
    asked_to_rehearse().clone().ok().flatten()
}

fn asked_to_rehearse() -> &'static std::result::Result<Option<Backend>, String> {
    static REHEARSED: OnceLock<std::result::Result<Option<Backend>, String>> = OnceLock::new();
    REHEARSED.get_or_init(|| match std::env::var(REHEARSE).as_deref() {
        Err(_) => Ok(None),
        Ok("cuda") => Ok(Some(Backend::Cuda)),
        Ok("metal") => Ok(Some(Backend::Metal)),
        Ok(other) => Err(format!("{REHEARSE} is {other:?}, expected cuda or metal")),
    })
}

/// The name of the instruction set that products on the CPU use: `portable`; `neon`, `neon_dotprod` or
/// `neon_bf16` (64-bit Arm); `avx2`, `avx512`, `avx512_vnni`, `avx512_bf16`, `amx` or `amx_emulated` (x86-64). It is the
/// fastest that the CPU has, unless the environment variable `CANDLE_BLOCKS_ISA` names one. `neon_dotprod` and `avx512_vnni` have
/// dot products of int8, `neon_bf16` and `avx512_bf16` of bfloat16 too, and `amx` has tile registers for both (on Linux).
/// `amx_emulated` gives the bits of `amx` on any CPU with AVX-512, slowly: it is for tests, and never chosen by itself.
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
