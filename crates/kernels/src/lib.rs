//! CPU kernels for transformer blocks: slices in, slices out.
//!
//! The kernels know no tensor and no configuration, and no shape except "rows of `n` elements". The caller promises
//! correct lengths, which are asserted.
//!
//! **Precision.** Half types are widened to f32, computed and summed there, and rounded once at the end. f32 and f64
//! compute in their own type, except that f32 takes statistics and long sums in f64.
//!
//! **Determinism.** On one instruction set a row's bits depend neither on the thread count nor on the other rows.
//! Rows are computed independently, and sums over rows are split into fixed-size chunks whose partial sums are added
//! in order.
//!
//! **Modules.** Each depends only on those before it:
//!
//! | module | contents |
//! |---|---|
//! | `vectors` | instruction sets ([`Isa`]), element types ([`Slice`]), `exp`, `erf` and `tanh` |
//! | [`memory`] | scratch memory kept between calls, large pages, recycled buffers |
//! | [`threads`] | work divided among threads in fixed-size chunks; thread teams that stay awake |
//! | [`rows`] | row-wise and elementwise operations: norms, softmax, activations, rotary embeddings, AdamW |
//! | [`recurrence`] | the gated delta rule: recurrences whose state is a matrix for each head |
//! | [`products`] | matrix products in f32, f64, half precision, bfloat16 and int8, with packed weights |
//! | [`attention`] | `softmax(q·kᵀ)·v` for all heads, and the KV cache |
//! | `storage` | values as files store them: GGUF's blocks, bit streams, narrow floating-point formats |
//!
//! A [`Cpu`] (instruction set and thread count) is passed to every call. All instruction sets are compiled in, and
//! selected at run time. The functions are not generic, so that a crate that uses this one compiles no kernel.
//!
//! **Reading order.** A matrix product is, from the outside in: `products/multiply.rs` (summation order and loop
//! order), `products/format.rs` (how operands are stored and multiplied), `products/kernel.rs` (the interface to an
//! instruction set), `products/dot_tile.rs` (the micro-kernel), `vectors` (one file for each instruction set).
//! Everything else is a loop over rows or elements.
#![deny(missing_docs)]
#![cfg_attr(shuttle, allow(dead_code, unused_imports))] // which the other modules use

#[cfg(not(shuttle))]
pub mod attention;
#[cfg(not(shuttle))]
mod cpu;
#[cfg(not(shuttle))]
pub mod memory;
#[cfg(not(shuttle))]
pub mod products;
#[cfg(not(shuttle))]
pub mod recurrence;
#[cfg(not(shuttle))]
pub mod rows;
#[cfg(not(shuttle))]
#[doc(hidden)]
pub mod storage;
pub mod threads; // All that is compiled for its model.
#[cfg(not(shuttle))]
mod vectors;

#[cfg(not(shuttle))]
pub use cpu::Cpu;
#[cfg(not(shuttle))]
pub use vectors::{
    isa::{Isa, IsaError, VARIABLE},
    slice::{Slice, SliceMut, Stored},
};

#[cfg(not(shuttle))]
#[cfg(test)]
mod reference;
#[cfg(not(shuttle))]
#[cfg(test)]
mod timing;

/// The README's program, compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
