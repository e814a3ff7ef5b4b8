//! CPU kernels for transformer blocks: slices in, slices out.
//!
//! Nothing here knows a tensor, a configuration, or any shape beyond "rows of `n` elements". Lengths are the
//! caller's promise, and are asserted.
//!
//! **Precision.** Half types are widened to f32, computed and summed there, and rounded once at the end. f32
//! and f64 compute in their own type, except that f32 takes statistics and long sums in f64.
//!
//! **Determinism.** On one instruction set a row's bits depend neither on the thread count nor on the other rows.
//! Rows are computed independently, and sums over rows are split into chunks of a fixed size whose partial sums are
//! added in order.
//!
//! **Rooms.** Each depends only on those before it:
//!
//! | room | what is in it |
//! |---|---|
//! | `vectors` | instruction sets ([`Isa`]), number types ([`Slice`]), `exp`, `erf` and `tanh` |
//! | [`memory`] | working memory kept between calls, large pages, recycled buffers |
//! | [`threads`] | work divided among threads in pieces of fixed size; teams that stay awake |
//! | [`rows`] | what is computed of each row or element: norms, softmax, activations, rotations, AdamW |
//! | [`products`] | matrix products of f32, f64, half precision, bfloat16 and int8, with packed weights |
//! | [`attention`] | `softmax(q·kᵀ)·v` of all heads, and its cache |
//!
//! A [`Cpu`] (instruction set and number of threads) travels with every call. All instruction sets are compiled in, and
//! chosen at run time: the functions are plain ones, so that a crate that uses this one compiles no kernel.
//!
//! **Where to start.** A matrix product is, from the outside in: `products/multiply.rs` (order of addition and of work),
//! `products/format.rs` (how operands are stored and multiplied), `products/kernel.rs` (what a level provides),
//! `products/dot_tile.rs` (the micro-kernel), `vectors` (one file for each instruction set). Everything else is a loop
//! over rows or elements.
#![deny(missing_docs)]

pub mod attention;
mod cpu;
pub mod memory;
pub mod products;
pub mod rows;
pub mod threads;
mod vectors;

pub use cpu::Cpu;
pub use vectors::{
    isa::{Isa, IsaError, VARIABLE},
    slice::{Slice, SliceMut, Stored},
};

#[cfg(test)]
mod reference;
#[cfg(test)]
mod timing;

/// The README's program, compiled and run together with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
