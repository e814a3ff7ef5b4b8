//! Instruction sets, element types, and vector math.

#[cfg(target_arch = "x86_64")]
pub mod amx;
#[cfg(target_arch = "x86_64")]
pub mod amx_emulated;
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
#[cfg(target_arch = "x86_64")]
pub mod tiles;

pub(crate) use element::{Element, Real, inlined};
pub(crate) use isa::Isa;
pub(crate) use lanes::{max, sum, sum_pairs, update_and_sum};
pub(crate) use level::{
    Instructions, Level, LevelTask, Lookup, Loop, MAX_LANES, TABLE_LEN, Task, Vectors, Widening,
    Words, columns_at_once,
};
pub(crate) use math::Separate;
pub(crate) use slice::{Slice, SliceMut, Stored, with_type};

#[cfg(test)]
mod tests;
