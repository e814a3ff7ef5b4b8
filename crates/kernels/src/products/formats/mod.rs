//! Operand formats, one per file, and the instructions that AVX-512 and NEON have for the narrow ones.

#[cfg(target_arch = "x86_64")]
pub mod avx512_dots;
pub mod bf16;
#[cfg(target_arch = "x86_64")]
mod emulated_dots;
mod f16;
mod float;
pub mod group_scales;
pub mod int4_search;
pub mod int8;
pub mod load_scales;
#[cfg(target_arch = "aarch64")]
mod neon_dots;
#[cfg(target_arch = "aarch64")]
mod neon_matrices;
pub mod quantized;
pub mod quantized_dots;

#[cfg(test)]
pub mod bandwidth;
#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
