//! The ceiling that products on the CPU are measured against.

use candle_blocks_kernels::products::{WeightFormat, peak};
use candle_core::Result;

use super::cpu::cpu;
use crate::config::{GroupSize, Precision};

/// The most operations per second that `threads` threads of this CPU reach with the instruction set that
/// [`isa`](super::isa) names: multiplications and additions (a fused one counts as two) between registers
/// alone, in the number format that a packed layer of this precision multiplies.
///
/// Measures for about 20 ms. No matrix product can be faster, except on `neon_bf16`, whose products of matrices do up to
/// twice what its dot products do, which are measured; a benchmark's share of this says how close it comes.
///
/// # Errors
/// If the environment asks for an instruction set that is unknown, or that this CPU lacks.
pub fn peak_flops(precision: Precision, threads: usize) -> Result<f64> {
    Ok(peak(
        cpu()?.on(threads),
        weight_format(precision).unwrap_or(WeightFormat::Int8),
    ))
}

/// The kernels' format of weights in a precision; `None`, if the weights' file has it.
pub(crate) fn weight_format(precision: Precision) -> Option<WeightFormat> {
    Some(match precision {
        Precision::F32 => WeightFormat::F32,
        Precision::F16 => WeightFormat::F16,
        Precision::Bf16 => WeightFormat::Bf16,
        Precision::Int8 => WeightFormat::Int8,
        Precision::Int4 { group } => match group {
            GroupSize::Of32 => WeightFormat::Int4By32,
            GroupSize::Of64 => WeightFormat::Int4By64,
            GroupSize::Of128 => WeightFormat::Int4By128,
        },
        // Bytes times bytes, whatever these are made of.
        Precision::AsStored => return None,
    })
}
