//! Kernels for NVIDIA GPUs: slices of a device in, slices of it out. **Nobody has run them on a GPU yet.**
//!
//! Norms and AdamW are in `kernels.cu`, which NVRTC compiles once for each device of a process; products with what follows them
//! are cuBLASLt's. Everything is issued on the stream that is given, and nothing waits for it.

#[cfg(feature = "cuda")]
mod element;
#[cfg(feature = "cuda")]
mod error;
#[cfg(feature = "cuda")]
mod product;
#[cfg(feature = "cuda")]
mod rows;

#[cfg(feature = "cuda")]
pub use self::{
    element::{Element, Multiplied},
    error::Error,
    product::{After, Product, product},
    rows::{adamw, norm},
};

#[cfg(test)]
mod tests;
