//! The ceiling that products on the CPU are measured against.

use candle_core::Result;
use half::bf16;

use super::linear::selected_isa;
use crate::{config::Precision, cpu::peak::operations_per_second};

/// The most operations per second that `threads` threads of this CPU reach with the instruction set that
/// [`isa`](super::isa) names: multiplications and additions (a fused one counts as two) between registers
/// alone, in the number format that a packed layer of this precision multiplies.
///
/// Measures for about 20 ms. No matrix product can be faster; a benchmark's share of this says how close it
/// comes.
///
/// # Errors
/// If the environment asks for an instruction set that is unknown, or that this CPU lacks.
pub fn peak_flops(precision: Precision, threads: usize) -> Result<f64> {
    let isa = selected_isa()?;
    Ok(match precision {
        Precision::F32 => operations_per_second::<f32>(isa, threads),
        Precision::Bf16 => operations_per_second::<bf16>(isa, threads),
        Precision::Int8 => operations_per_second::<i8>(isa, threads),
    })
}
