//! The CPU execution context. Only this module reads the environment.

use std::sync::OnceLock;

use candle_blocks_kernels::{Cpu, threads};
use candle_core::{Device, Result, bail, utils::get_num_threads};

/// Returns the instruction set that the environment requests, or else the fastest, and candle's thread count.
///
/// # Errors
/// If the environment requests an instruction set that is unknown, or that this CPU lacks, or an unknown device to
/// emulate.
#[doc(hidden)]
pub fn cpu() -> Result<Cpu> {
    if let Err(reason) = asked_to_rehearse() {
        bail!("{reason}");
    }
    Cpu::selected(n_threads()).map_err(candle_core::Error::wrap)
}

/// Runs `work` with threads that stay awake between its steps.
#[doc(hidden)]
pub fn with_team<R>(work: impl FnOnce() -> R) -> R {
    threads::with_team(n_threads(), work)
}

/// The maximum thread count per core. More threads wait for each other: with 1,000 per core, one text takes a
/// minute.
const MOST_PER_CORE: usize = 32;

/// Returns the thread count for the CPU: candle's [`get_num_threads`], which is `RAYON_NUM_THREADS` or else the core
/// count, but at most 32 per core. Results have the same bits for any thread count.
///
/// candle counts cores at every call by reading `/proc/cpuinfo`, which takes longer than a small product. Here they
/// are counted once.
pub fn n_threads() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    static MOST: OnceLock<usize> = OnceLock::new();
    let requested = std::env::var("RAYON_NUM_THREADS").ok();
    let requested = requested.and_then(|number| number.parse().ok());
    match requested.filter(|&number: &usize| number > 0) {
        None => *CORES.get_or_init(get_num_threads),
        Some(requested) => requested.min(*MOST.get_or_init(|| {
            let cores = std::thread::available_parallelism();
            MOST_PER_CORE * cores.map_or(1, usize::from)
        })),
    }
}

/// The route on which layers and operations compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// This crate's kernels, with the instruction set that [`isa`] returns.
    Kernels,
    /// Composed from candle's own operations.
    Composed,
}

/// Returns the route for everything in [`ops`](crate::ops) and [`layers`](crate::layers) on `device`: kernels on the
/// CPU, and composed operations elsewhere, for any dtype, shape and mode.
pub fn route(device: &Device) -> Route {
    match device.is_cpu() && rehearsed().is_none() {
        true => Route::Kernels,
        false => Route::Composed,
    }
}

/// The backend for composed steps. Backends support different operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Cuda,
    Metal,
}

/// Returns the backend for composed steps on a device, or the backend that the CPU emulates.
pub(crate) fn backend(device: &Device) -> Backend {
    match device {
        Device::Metal(_) => Backend::Metal,
        Device::Cuda(_) => Backend::Cuda,
        Device::Cpu => rehearsed().unwrap_or(Backend::Cuda),
    }
}

/// The environment variable that makes the CPU compute like another device, to test it without having it: `cuda` or
/// `metal`.
const REHEARSE: &str = "CANDLE_BLOCKS_REHEARSE";

/// Returns the backend that the CPU emulates, from `CANDLE_BLOCKS_REHEARSE`.
pub(crate) fn rehearsed() -> Option<Backend> {
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

/// Returns the instruction set's name for products on the CPU: `portable`; `neon`, `neon_dotprod` or `neon_bf16`
/// (64-bit Arm); `avx2`, `avx512`, `avx512_vnni`, `avx512_bf16`, `amx` or `amx_emulated` (x86-64). It is the fastest
/// that the CPU has, unless the environment variable `CANDLE_BLOCKS_ISA` names one. `neon_dotprod` and `avx512_vnni`
/// have int8 dot products, `neon_bf16` and `avx512_bf16` also bfloat16 dot products, and `amx` has tile registers
/// for both (on Linux). `amx_emulated` gives `amx`'s bits on any CPU with AVX-512, slowly. It is meant for tests,
/// and never selected automatically.
///
/// # Errors
/// If the variable names an instruction set that is unknown or that this CPU lacks.
pub fn isa() -> Result<&'static str> {
    cpu().map(|cpu| cpu.isa.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_count_is_candles() {
        let candles = get_num_threads();
        assert_eq!((n_threads(), n_threads()), (candles, candles));
    }
}
