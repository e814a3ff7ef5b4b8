//! The formats of operands, one a file, and the instructions that AVX-512 and NEON have for the narrow ones.

#[cfg(target_arch = "x86_64")]
pub mod avx512_dots;
pub mod bf16;
pub mod coded;
pub mod coded_dots;
pub mod codes;
#[cfg(target_arch = "x86_64")]
mod emulated_dots;
mod f16;
mod float;
pub mod heads;
pub mod int8;
#[cfg(target_arch = "aarch64")]
mod neon_dots;
#[cfg(target_arch = "aarch64")]
mod neon_matrices;
pub mod read_heads;

#[cfg(test)]
pub mod bandwidth;
#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
