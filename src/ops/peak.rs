//! What products on the CPU are measured against.

use candle_core::Result;

use super::linear::selected_isa;
use crate::{config::Precision, cpu::peak::operations_per_second};

/// The most operations per second that `threads` threads of this CPU do on operands of this precision, in the
/// instruction set that [`isa`](super::isa) names: multiplications and additions (a fused one is two) of registers
/// alone.
///
/// Measures for about 20 ms. A matrix product cannot be faster than this, and a benchmark's share of it
/// says how near it is.
///
/// # Errors
/// If the environment asks for an instruction set that is not there.
pub fn peak_flops(precision: Precision, threads: usize) -> Result<f64> {
    let isa = selected_isa()?;
    Ok(match precision {
        Precision::F32 => operations_per_second::<f32>(isa, threads),
    })
}
