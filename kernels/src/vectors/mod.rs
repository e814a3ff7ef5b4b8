//! Instruction sets, and the numbers and functions that they compute.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
pub mod element;
pub mod fused;
pub mod isa;
pub mod lanes;
pub mod level;
pub mod math;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod portable;
pub mod prefetch;
pub mod slice;

#[cfg(test)]
mod tests;
