//! The CPU's peak speed, an upper bound for products.

use candle_blocks_kernels::products::{WeightFormat, peak};
use candle_core::Result;

use super::cpu::cpu;
use crate::config::{GroupSize, Precision};

/// Measures the peak speed in operations per second that `threads` threads reach with the instruction set that
/// [`isa`](super::isa) returns: multiplications and additions (a fused one counts as two) between registers, in the
/// number format that a packed layer with this precision multiplies.
///
/// The measurement takes about 20 ms. No matrix product can be faster, except on `neon_bf16`: its matrix products
/// reach up to twice the speed of its dot products, which are measured. A benchmark can report its share of this
/// peak.
///
/// # Errors
/// If the environment requests an instruction set that is unknown, or that this CPU lacks.
pub fn peak_flops(precision: Precision, threads: usize) -> Result<f64> {
    Ok(peak(
        cpu()?.on(threads),
        weight_format(precision).unwrap_or(WeightFormat::Int8),
    ))
}

/// Returns the kernels' weight format for a precision. `None` if the weights' file determines it.
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
        // Bytes times bytes, for any stored format.
        Precision::AsStored => return None,
    })
}
