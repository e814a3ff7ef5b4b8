//! Values as files store them: GGUF's blocks, bit streams, narrow floating-point formats, and their dequantization.
//!
//! A reader of files has the bytes and says what they mean; every loop over values is here, because a debug build optimizes the
//! kernels alone.

pub mod bits;
mod block_kind;
pub mod codes;
pub mod decode;
pub mod encode;
mod grids;
pub mod numbers;
mod rows;
mod search;

pub use block_kind::{BlockKind, name_of_unread};
pub use rows::{QuantizedRows, Zeros, in_runs, transposed};
