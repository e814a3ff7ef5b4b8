//! What products on the CPU are measured against.

use candle_core::Result;

use super::linear::selected_isa;
use crate::cpu::peak::f32_operations_per_second;

/// The most f32 operations per second that `threads` threads of this CPU do in the instruction set
/// [`isa`](super::isa) names: multiplications and additions (a fused one is two) of registers alone.
///
/// Measures for about 20 ms. A matrix product cannot be faster than this, and a benchmark's share of it
/// says how near it is.
///
/// # Errors
/// If the environment asks for an instruction set that is not there.
pub fn peak_flops(threads: usize) -> Result<f64> {
    Ok(f32_operations_per_second(selected_isa()?, threads))
}
